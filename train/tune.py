"""Fit the shares and the order of the phases of `auto`: ``python -m rlinit.train.tune``.

Training draws problems of the project's own generators and runs `auto` on each with several *arms*: shares shifted on
the logistic scale, and phases moved to other places. A race of rounds on new problems drops the worse half of the arms
each time. Among those that are left, and the strategy set by hand, a ridge regression for each arm predicts from
features of the problem the logarithm of its primal-dual integral over that of the strategy set by hand. `auto` uses
none of it: no arm was better (docs/learning.md).

Limits count seconds of the processor, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.datasets.random.placement_problems import ProblemMix, layered_problem, random_problems
from rlinit.files import write_json
from rlinit.placements.problem import PlacementProblem
from rlinit.solving.incumbent import for_placement
from rlinit.solving.options import SolveOptions
from rlinit.solving.placement_phases import PlacementSearch
from rlinit.solving.placements import placement_strategy
from rlinit.solving.strategy import Strategy, follow
from rlinit.train.core.machine_info import machine

__all__ = ["Arm", "Trial", "fit", "primal_dual_integral", "race", "rearranged"]

_FIRST_SEED = 4_000_000
_SIZES = (40, 80, 150, 250, 400, 700)
_LIMITS_S = (1.0, 2.0)
_LEAST = 1e-3
"""Integrals below this count as this."""

_OPENING = 3
"""Place of the last phase that keeps its place, as do those before it: path, coarse schedule, loads and agent."""

_MOVABLE = ("bound flow", "local search", "constraint program", "blocks", "bounds around and joined")
"""Phases that arms move to other places."""

_SHIFTED = (*_MOVABLE, "memory multipliers", "program without orders", "local search, another seed", "windows")
"""Phases whose shares arms shift."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to share the time out.

    Parameters
    ----------
    shift
        Phase -> what is added to the logit of its share.
    place
        Phase -> how many places later it comes.
    """

    shift: Mapping[str, float]
    place: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Features of a problem, and (arms,) the logarithms of integrals over that of the strategy set by hand."""

    features: FloatArray
    logs: FloatArray


def rearranged(strategy: Strategy[Any], arm: Arm) -> Strategy[Any]:
    """Return a strategy with an arm's shares, in its order; phases of equal name are treated alike.

    Parameters
    ----------
    strategy
        The phases.
    arm
        What to change.
    """
    later = [max(at + arm.place.get(phase.name, 0.0), min(at, _OPENING + 0.5)) for at, phase in enumerate(strategy)]
    phases = []
    for at in np.argsort(later, kind="stable").tolist():
        phase, shift = strategy[at], arm.shift.get(strategy[at].name, 0.0)
        share = phase.share if phase.share == 1.0 else 1.0 / (1.0 + (1.0 / phase.share - 1.0) * np.exp(-shift))
        phases.append(replace(phase, share=float(share)))
    return tuple(phases)


_EARLY = {"bounds around and joined": -9.0}
_DESIGNED = (
    Arm({"bounds around and joined": -1.4}, _EARLY),
    Arm({"local search": -1.2}, {}),
    Arm({"bound flow": -1.2, "local search": -1.2}, {}),
    Arm({"bound flow": -1.2, "local search": -1.2, "bounds around and joined": -1.0}, _EARLY),
    Arm({"bound flow": -1.2, "local search": -1.2, "blocks": -2.0, "constraint program": -1.5}, {}),
    Arm({"bound flow": -1.2, "local search": 1.0, "blocks": -1.0}, {}),
    Arm({"blocks": -1.0}, {"blocks": -9.0}),
    Arm({"blocks": -1.0, "local search": -1.2, "bound flow": -1.2}, {"blocks": -9.0}),
)
"""Arms set by hand, beside which others are drawn."""


def draw_arm(rng: np.random.Generator) -> Arm:
    """Return a random arm."""
    shift = {name: float(rng.normal(0.0, 1.2)) for name in _SHIFTED}
    place = {name: float(rng.normal(0.0, 3.0)) for name in _MOVABLE}
    return Arm(shift, place)


def draw_problem(rng: np.random.Generator) -> tuple[PlacementProblem, float]:
    """Return a problem and the seconds it is searched for; some have little memory or queues of transfers."""
    size = int(rng.choice(_SIZES))
    if rng.random() < 0.5:
        problem = layered_problem(rng, size)
    else:
        problem = random_problems(rng, min(size, 400), 1, ProblemMix(0.5, 0.0))[0]
    kind, weights = rng.random(), float(problem.weight_bytes.sum())
    if kind < 0.2 and weights > 0:
        capacity = np.full(problem.num_devices, weights * rng.uniform(1.5, 3.0) / problem.num_devices)
        problem = replace(problem, capacity_bytes=capacity)
    elif kind < 0.35:
        problem = replace(problem, transfers="exclusive")
    return problem, float(rng.choice(_LIMITS_S))


def features(problem: PlacementProblem, limit_s: float) -> FloatArray:
    """Return what a choice between arms looks at, each about from -1 to 1.

    Parameters
    ----------
    problem
        The problem.
    limit_s
        Seconds there are.
    """
    n, d = problem.op_time_s.shape
    able = np.isfinite(problem.op_time_s)
    seconds = np.where(able, problem.op_time_s, 0.0)
    mean = seconds.sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    spread = np.where(able, np.abs(problem.op_time_s - mean[:, None]), 0.0).sum() / max(float(seconds.sum()), 1e-300)
    apart = ~np.eye(d, dtype=bool)
    links = problem.s_per_byte[apart]
    rate = float(links[np.isfinite(links)].mean()) if np.isfinite(links).any() else 0.0
    ccr = rate * float(problem.tensor_bytes.mean()) / max(float(mean.mean()), 1e-300)
    level = np.zeros(n, np.int64)
    for v in problem.order.tolist():
        follower = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        level[follower] = np.maximum(level[follower], level[v] + 1)
    tight = float(problem.weight_bytes.sum()) / max(float(problem.capacity_bytes.sum()), 1e-300)
    return np.array(
        [
            np.log10(n) - 2.0,
            np.log10(len(problem.edges) / n + 0.1),
            np.log10(n / (int(level.max()) + 1)) - 0.5,
            np.log2(d) - 2.0,
            min(2.0, 2.0 * spread) - 1.0,
            np.clip(np.log10(ccr + 1e-3), -2.0, 2.0) / 2.0,
            min(tight, 1.0),
            float(problem.transfers != "parallel"),
            np.log10(limit_s),
        ]
    )


def integral(problem: PlacementProblem, strategy: Strategy[Any], limit_s: float) -> float:
    """Return the mean relative gap over the limit, 1 until there is a value.

    Parameters
    ----------
    problem
        The problem.
    strategy
        The phases.
    limit_s
        Seconds of the processor.
    """
    incumbent = for_placement(problem, Budget(limit_s), 0.0, None)
    options = SolveOptions(objective="latency", time_limit_s=limit_s)
    follow(strategy, PlacementSearch.of(incumbent, options, None))
    history = [
        (one.time_s, one.values[0] if one.values else None, one.bounds[0] if one.bounds else None)
        for one in incumbent.history
    ]
    return max(_LEAST, primal_dual_integral(history, limit_s))


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


def race(seed: int, arms: int, rounds: int, batch: int) -> tuple[list[Arm], list[Trial]]:
    """Return the arms that are left after all rounds, and what they and the strategy set by hand reached.

    Parameters
    ----------
    seed
        Of arms and problems.
    arms
        How many are drawn.
    rounds
        Rounds; the worse half of the arms goes after each but the last.
    batch
        Problems of a round.
    """
    rng = np.random.default_rng([_FIRST_SEED, seed])
    left = [*_DESIGNED, *(draw_arm(rng) for _ in range(arms - len(_DESIGNED)))]
    hand = placement_strategy("auto")
    trials: list[Trial] = []
    for number in range(rounds):
        kept: list[Trial] = []
        draws = np.random.default_rng([_FIRST_SEED, seed, number])
        while len(kept) < batch:
            problem, limit_s = draw_problem(draws)
            rival = integral(problem, hand, limit_s)
            if rival >= 1.0 or rival <= _LEAST:
                continue  # nothing fits, or all is over at once: it says nothing
            logs = np.log([integral(problem, rearranged(hand, arm), limit_s) / rival for arm in left])
            kept.append(Trial(features(problem, limit_s), logs))
            print(number, problem.num_ops, limit_s, round(rival, 4), np.round(logs, 2).tolist(), flush=True)
        means = np.mean([one.logs for one in kept], axis=0)
        order = np.argsort(means, kind="stable")
        print("round", number, "means", np.round(means, 3).tolist(), flush=True)
        if number < rounds - 1:
            order = np.sort(order[: max(2, (len(left) + 1) // 2)])
            left = [left[i] for i in order.tolist()]
            trials = [Trial(one.features, one.logs[order]) for one in [*trials, *kept]]
        else:
            trials += kept
    return left, trials


def fit(trials: Sequence[Trial]) -> tuple[FloatArray, float, float]:
    """Return weights (arms, features + 1), and the mean logarithm of the choice and of the best arm, left out in turn.

    The strength of the ridge is the one whose choices are best on problems left out.

    Parameters
    ----------
    trials
        What the arms reached.
    """
    x = np.array([np.append(one.features, 1.0) for one in trials])
    y = np.array([one.logs for one in trials])
    best: tuple[float, float] = (np.inf, 0.0)
    for ridge in (0.3, 1.0, 3.0, 10.0, 30.0, 1e6):
        chosen = []
        for at in range(len(x)):
            rest = np.arange(len(x)) != at
            predicted = x[at] @ _ridge(x[rest], y[rest], ridge).T
            arm = int(predicted.argmin())
            chosen.append(y[at, arm] if predicted[arm] < 0 else 0.0)
        print("ridge", ridge, "left out", round(float(np.mean(chosen)), 4), flush=True)
        best = min(best, (float(np.mean(chosen)), ridge))
    return _ridge(x, y, best[1]), best[0], float(y.mean(axis=0).min())


def _ridge(x: FloatArray, y: FloatArray, ridge: float) -> FloatArray:
    """Return (arms, features) the weights, of which the last, the constant, is not drawn to 0."""
    penalty = np.diag(np.append(np.full(x.shape[1] - 1, ridge), 1e-6))
    return np.asarray(np.linalg.solve(x.T @ x + penalty, x.T @ y).T, np.float64)


def main() -> None:
    """Race and fit from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("runs/strategy.json"))
    chosen = parser.parse_args()
    time.monotonic = time.perf_counter = time.process_time
    rng = np.random.default_rng(0)
    for _ in range(3):
        integral(draw_problem(rng)[0], placement_strategy("auto"), 2.0)  # compiles
    began = time.process_time()
    left, trials = race(chosen.seed, chosen.arms, chosen.rounds, chosen.batch)
    weights, left_out, single = fit(trials)
    print("left out in turn:", np.exp(left_out), "best arm:", np.exp(single))
    flags = f"--seed {chosen.seed} --arms {chosen.arms} --rounds {chosen.rounds} --batch {chosen.batch}"
    card = {
        "command": f"python -m rlinit.train.tune {flags}",
        "arms": [{"shift": dict(arm.shift), "place": dict(arm.place)} for arm in left],
        "weights": weights.tolist(),
        "left_out": float(np.exp(left_out)),
        "best_arm": float(np.exp(single)),
        "trials": [one.logs.tolist() for one in trials],
        "seconds": time.process_time() - began,
        "machine": machine(),
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out, card)


if __name__ == "__main__":
    main()
