"""JSON schemas of the files that rlinit reads and writes."""
