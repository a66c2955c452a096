"""Annealing by the excess over a trial load: whole rows, slots of split runs."""
