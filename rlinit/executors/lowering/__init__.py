"""Plans turned into programs of devices, by torch alone: importing this says so where it is missing."""

from rlinit.errors import imported

imported("torch", "running models", "rlinit[torch]")
