"""Fit where the dual ascent of placements begins and how it steps: ``python -m rlinit.train.multipliers``.

The loss of a draw is the mean logarithm of the bound by path, loads and what lies around each op over the bound that
the ascent certifies after a fixed number of rounds, on generated problems. No labels are needed: what is maximised is
the certified bound itself.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.datasets.random.placement_problems import ProblemMix, layered_problem, random_problems
from rlinit.exact.placements.bounds.flow import FlowBound, FlowStart
from rlinit.exact.placements.bounds.registry import FlowProblem, flow_problem
from rlinit.train.evolution import Evolution, evolve

PLAIN = FlowStart(30.0, -3.0, -3.0, -2.0, 0.0, 3.0, 10.0, 0.1, 0.3, 30.0, 30.0, 100.0)
"""Multipliers and steps set by hand, with which training begins."""

_FIRST_SEED = 3_000_000
"""Of problems to train on, which no benchmark has."""
_SIZES = (60, 120, 250, 500)
"""Ops of these problems."""
_NAMES = tuple(field.name for field in fields(FlowStart))
_WORTHLESS = 1e-3
"""Part of a bound of windows alone with which the ascent begins in training."""

_SCALED = 6
"""The last so many fields are positive and searched by their logarithms, as is the first."""


def start_of(point: FloatArray) -> FlowStart:
    """Return what a point of the search space stands for: fields of `FlowStart`, positive ones by their logarithms.

    Parameters
    ----------
    point
        (12,).
    """
    values = [*np.exp(point[:1]), *point[1:-_SCALED], *np.exp(np.clip(point[-_SCALED:], -8.0, 12.0))]
    return FlowStart(*(float(value) for value in values))


def point_of(start: FlowStart) -> FloatArray:
    """Return the point that stands for a start."""
    values = np.array([getattr(start, name) for name in _NAMES])
    return np.concatenate([np.log(values[:1]), values[1:-_SCALED], np.log(values[-_SCALED:])])


def problems(seed: int, number: int, count: int) -> list[FlowProblem]:
    """Return problems of a generation with windows and weights: parts of networks, on all devices, and layered graphs.

    Parameters
    ----------
    seed, number
        Of the search, and of the generation.
    count
        How many.
    """
    rng = np.random.default_rng([_FIRST_SEED + seed, number])
    found: list[FlowProblem] = []
    while len(found) < count:
        size = int(rng.choice(_SIZES))
        one = (
            layered_problem(rng, size) if rng.random() < 0.5 else random_problems(rng, size, 1, ProblemMix(0.4, 0.0))[0]
        )
        lowered = flow_problem(one, np.inf, Budget())
        if lowered is not None and lowered.bound_s > 0:
            found.append(lowered)
    return found


def fit(path: Path, how: Evolution, rounds: int) -> FlowStart:
    """Search, writing what is found after each generation; return the last mean.

    Parameters
    ----------
    path
        The file.
    how
        Seed, generations and sizes.
    rounds
        Of each ascent.
    """
    kept: dict[int, list[FlowProblem]] = {}

    def loss(point: FloatArray, number: int) -> float:
        if number not in kept:
            kept.clear()
            kept[number] = problems(how.seed, number, how.batch)
        start = start_of(point)
        logs = []
        for one in kept[number]:
            ascent = FlowBound(one.problem, one.window, one.weight, start)
            ascent.bound_s = _WORTHLESS * one.bound_s  # windows alone would hide what the ascent is worth
            logs.append(np.log(one.bound_s / ascent.run(rounds, Budget())))
        return float(np.mean(logs))

    def card(mean: FloatArray) -> dict[str, Any]:
        flags = f"--seed {how.seed} --generations {how.generations} --rounds {rounds}"
        command = f"python -m rlinit.train.multipliers {flags}"
        return {"command": command, "rounds": rounds, "start": asdict(start_of(mean))}

    first = point_of(PLAIN)
    spread = np.array([1.0, *[1.5] * (len(first) - 1 - _SCALED), *[0.8] * _SCALED])
    return start_of(evolve(path, loss, first, spread, how, card))


def main() -> None:
    """Fit from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("runs/multipliers.json"))
    chosen = parser.parse_args()
    print(fit(chosen.out, Evolution(chosen.seed, chosen.generations), chosen.rounds))


if __name__ == "__main__":
    main()
