"""What all importers share."""
