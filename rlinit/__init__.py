"""rlinit: schedules neural networks on hardware, and proves how good the schedule is."""
