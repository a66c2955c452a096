"""Properties that hold for every problem, held against brute force."""
