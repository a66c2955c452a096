"""Local search of `auto`: annealing of windows, batches and contended links, tabu search on the critical path."""
