"""The placement problem: devices and start times of ops, their timelines and windows."""
