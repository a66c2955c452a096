"""Plans turned into programs of devices, all of it with torch, whose absence is told here."""

from rlinit.errors import imported

imported("torch", "running models", "rlinit[torch]")
