"""Measuring this machine: times of ops, transfers between devices, and the roofline that fits them."""
