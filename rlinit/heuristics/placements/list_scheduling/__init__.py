"""List scheduling: HEFT, greedy and what others build on."""
