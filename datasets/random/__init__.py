"""Random graphs and problems."""
