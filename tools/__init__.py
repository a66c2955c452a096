"""Scripts for the people who work on rlinit; not installed."""
