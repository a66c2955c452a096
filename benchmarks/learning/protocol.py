"""What all comparisons of learned with hand-made parts share: pairs, intervals, integrals, verdicts, and the splits.

A comparison is paired: both sides get the same problems, seeds and processor time, in turns within one run. What counts
is the mean over problems of the logarithm of ours over theirs, with a bootstrap interval over problems. A learned part
is switched on only where that interval lies below 1 on families that it was not trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from benchmarks.record import print_table

__all__ = ["JUDGE_SEEDS", "Comparison", "compare", "primal_dual_integral", "print_comparisons", "processor_time"]

JUDGE_SEEDS = range(10)
"""Seeds that judging draws generated problems from; training draws from 1,000,000 on."""

_DRAWS = 10_000
_SEED = 14

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One learned part against its rival on one family.

    Parameters
    ----------
    family, measure
        What was judged, and what is compared; small is good.
    problems, wins, losses
        How many, and on how many ours is better or worse by more than 1e-9 relatively.
    ratio, low, high
        Geometric mean of ours over theirs with its 95% bootstrap interval over problems.
    """

    family: str
    measure: str
    problems: int
    wins: int
    losses: int
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``wins`` or ``loses`` where the interval leaves out 1, else ``open``."""
        return "wins" if self.high < 1.0 else "loses" if self.low > 1.0 else "open"


def compare(family: str, measure: str, ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Return the comparison of paired positive figures of which small ones are good.

    Parameters
    ----------
    family, measure
        What was judged, and what the figures are.
    ours, theirs
        A figure for each problem, in the same order.

    Raises
    ------
    ValueError
        No pairs, rows of unequal length, or a figure that is not positive and finite.
    """
    pairs = np.array([ours, theirs], np.float64)
    if pairs.ndim != 2 or not pairs.shape[1] or not (np.isfinite(pairs).all() and (pairs > 0).all()):
        raise ValueError(f"{family}: expected as many positive figures of ours as of theirs, and at least one")
    logs = np.log(pairs[0] / pairs[1])
    rng = np.random.default_rng(_SEED)
    means = logs[rng.integers(len(logs), size=(_DRAWS, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, [0.025, 0.975])).tolist()
    wins, losses = int((logs < -1e-9).sum()), int((logs > 1e-9).sum())
    return Comparison(family, measure, len(logs), wins, losses, float(np.exp(logs.mean())), low, high)


def processor_time(call: Callable[[], T]) -> tuple[T, float]:
    """Return a call's result and the seconds of processor time that it took."""
    began = time.process_time()
    result = call()
    return result, time.process_time() - began


def primal_dual_integral(
    history: Iterable[tuple[float, float | None, float | None]], limit_s: float, *, best: float | None = None
) -> float:
    """Return the mean relative gap over the first `limit_s` seconds, from 0 to 1.

    The gap is 1 until there is a value, and (value - bound) / value after, as in Berthold's integrals.

    Parameters
    ----------
    history
        (seconds, value, bound) at each improvement, in order of time; None where there is none yet.
    limit_s
        Over how long.
    best
        A value to measure the distance to in place of the bound: the primal integral.

    References
    ----------
    Berthold: Measuring the impact of primal heuristics, Operations Research Letters 41, 2013.
    """
    area, last_s, gap = 0.0, 0.0, 1.0
    for seconds, value, bound in history:
        at = min(seconds, limit_s)
        area += gap * (at - last_s)
        last_s = at
        floor = best if best is not None else bound or 0.0
        gap = 1.0 if value is None else 0.0 if value <= 0.0 else min(1.0, max(0.0, (value - floor) / value))
    return (area + gap * (limit_s - last_s)) / limit_s


def print_comparisons(title: str, rows: Iterable[Comparison]) -> None:
    """Print comparisons, the lost ones like the others.

    Parameters
    ----------
    title
        Of the table.
    rows
        The comparisons.
    """
    header = ["family", "measure", "problems", "wins", "losses", "ours / theirs", "95% interval", "verdict"]
    cells = [
        (r.family, r.measure, r.problems, r.wins, r.losses, r.ratio, f"{r.low:.4g} to {r.high:.4g}", r.verdict)
        for r in rows
    ]
    print_table(title, header, cells)
