"""What all searches share: what is known so far, and the options of a problem."""
