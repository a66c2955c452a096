"""What devices are: hardware by name, and what ops reach of their peak rates."""
