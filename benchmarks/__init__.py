"""Published tables and figures, run side by side against peers; results as data and pictures."""
