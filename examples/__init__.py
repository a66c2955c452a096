"""End-to-end flows to read and change; each is run as ``python -m examples.NAME --help``."""
