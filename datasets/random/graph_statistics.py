"""What real networks look like, in a few numbers fitted to their graphs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.errors import InvalidGraph


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """Distributions of structure and costs; N(m, s) is normal with mean m and standard deviation s, p = rank / n.

    An op is *plain* (no parameters), *small* (normalisation: a few parameters a channel) or *large* (convolution,
    dense). The numbers that are not given are those of networks for images.

    Parameters
    ----------
    merge_rate
        Fraction of ops with two or more parents.
    previous_rate
        Fraction of ops with parents whose nearest parent is the op just before them.
    skip_mean
        Mean distance, in ops, to the other parents of a merge; drawn as 1 + a geometric number >= 1.
    plain_rate, small_rate
        Fractions of plain and small ops; the rest are large.
    small_intercept, small_slope, small_std
        ln(param_bytes) of a small op ~ N(intercept + slope p, std).
    large_intercept, large_slope, large_std
        The same of a large op.
    same_out_rate
        Fraction of ops whose output is as large as their nearest parent's.
    out_intercept, out_slope, out_std
        ln(out_bytes) ~ N(intercept + slope p, std).
    flops_intercept, flops_of_param, flops_of_out, flops_std
        ln(flops) of a large op ~ N(intercept + flops_of_param ln(param_bytes) + flops_of_out ln(out_bytes), std).
        A small op has 2 operations an output element.
    idle_rate
        Fraction of plain ops that compute nothing; the others have 1 operation an output element.

    Raises
    ------
    InvalidGraph
        A number that is not finite, a negative deviation, a rate outside 0 .. 1, ``skip_mean < 2``, or rates that sum
        to more than 1.
    """

    merge_rate: float = 0.1119
    previous_rate: float = 0.9371
    skip_mean: float = 8.342
    plain_rate: float = 0.4388
    small_rate: float = 0.2485
    small_intercept: float = 5.881
    small_slope: float = 2.27
    small_std: float = 0.9874
    large_intercept: float = 8.806
    large_slope: float = 4.345
    large_std: float = 1.425
    same_out_rate: float = 0.6217
    out_intercept: float = 11.75
    out_slope: float = -1.532
    out_std: float = 2.464
    flops_intercept: float = 0.672
    flops_of_param: float = 0.6721
    flops_of_out: float = 0.8355
    flops_std: float = 1.078
    idle_rate: float = 0.2363

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if not np.isfinite(value) or (entry.name.endswith("_std") and value < 0):
                raise InvalidGraph(f"{entry.name} is {value}; expected a finite number (>= 0 for a deviation)")
            if entry.name.endswith("_rate") and not 0 <= value <= 1:
                raise InvalidGraph(f"{entry.name} is {value}; expected a fraction between 0 and 1")
        if self.skip_mean < 2 or self.plain_rate + self.small_rate > 1:
            raise InvalidGraph("expected skip_mean >= 2, and plain_rate + small_rate <= 1")

    def to_array(self) -> FloatArray:
        """Return the numbers in the order of the fields, for the kernel."""
        return np.array(dataclasses.astuple(self), np.float64)


IMAGENET = GraphStatistics()
"""Fitted to every network of `rlinit.datasets.zoo.imagenet.NAMES` (8,958 ops; INT8 sizes), rounded to 4 digits;
`tests/datasets/random/fitting.py` has the fit."""
