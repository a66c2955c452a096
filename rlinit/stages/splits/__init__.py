"""Pipelines beyond one stage a device: several chunks a device, and devices that hold any ops."""
