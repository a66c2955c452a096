"""MILP-SPLIT: graphs that fall into blocks are solved block by block."""
