"""Plans turned into programs of devices."""
