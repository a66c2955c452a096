"""What a learned strategy could gain: `auto` with other shares and another order of phases, chosen in hindsight.

Five *arms* shift the shares of bounds or of searches on the logistic scale, or move bounds to the front. To choose the
best of six runs after the fact gains by luck alone, so the best of the arms is held against the best of as many
seeds by hand; what is left is the most that any model of a problem's features could gain by these arms. A choice that
can be made is the arm that is best on all other families. Measured is the primal-dual integral, in seconds of the
processor. Run as ``python -m benchmarks.learning.shares [--seconds S] [--count N]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np

import rlinit
from benchmarks.learning.families import FAMILIES, Case
from benchmarks.learning.protocol import Comparison, compare, primal_dual_integral, print_comparisons
from benchmarks.learning.strategy import LEAST, run
from benchmarks.record import count_processor_time, save
from rlinit.solving.phases import Phase
from rlinit.solving.placement_strategies import PLACEMENT_METHODS
from rlinit.solving.stage_strategies import STAGE_METHODS

_OPENING = {"first search", "few ideals"}
"""The phases behind which bounds are early."""

Change = Callable[[list[Phase[Any]]], list[Phase[Any]]]


def _is_bound(phase: Phase[Any]) -> bool:
    return phase.name.startswith("bound")


def _shifted(phases: list[Phase[Any]], bounds: bool, by: float) -> list[Phase[Any]]:
    """Return phases with the odds of the shares of bounds, or of all else, times e to the power of `by`."""

    def share(one: Phase[Any]) -> float:
        odds = np.exp(by) * one.share / max(1.0 - one.share, 1e-9)
        return float(odds / (1.0 + odds)) if _is_bound(one) == bounds and one.share < 1.0 else one.share

    return [replace(phase, share=share(phase)) for phase in phases]


def _early(phases: list[Phase[Any]]) -> list[Phase[Any]]:
    """Return phases with all bounds right after the opening."""
    at = 1 + max(i for i, phase in enumerate(phases) if phase.name in _OPENING)
    return phases[:at] + sorted(phases[at:], key=lambda phase: not _is_bound(phase))


ARMS: dict[str, Change] = {
    "bounds longer": partial(_shifted, bounds=True, by=1.0),
    "bounds shorter": partial(_shifted, bounds=True, by=-1.0),
    "searches longer": partial(_shifted, bounds=False, by=1.0),
    "searches shorter": partial(_shifted, bounds=False, by=-1.0),
    "bounds early": _early,
}


@contextmanager
def _with(change: Change) -> Iterator[None]:
    methods: tuple[dict[str, Any], ...] = (PLACEMENT_METHODS, STAGE_METHODS)
    changed = [{"auto": tuple(change(list(each["auto"])))} for each in methods]
    with patch.dict(methods[0], changed[0]), patch.dict(methods[1], changed[1]):
        yield


def _seeded(seed: int) -> AbstractContextManager[object]:
    return patch.object(rlinit, "schedule", partial(rlinit.schedule, seed=seed))


SIDES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "by hand": nullcontext,
    **{name: partial(_with, change) for name, change in ARMS.items()},
    **{f"seed {seed}": partial(_seeded, seed) for seed in range(1, 1 + len(ARMS))},
}


def integrals(case: Case, objective: str, seconds: float, at: int) -> dict[str, float]:
    """Return the primal-dual integral by side, the first of them `at` places on."""
    names = [*SIDES][at % len(SIDES) :] + [*SIDES][: at % len(SIDES)]
    found = {name: run(case, SIDES[name], objective, seconds)[0] for name in names}
    return {name: max(LEAST, primal_dual_integral(found[name], seconds)) for name in SIDES}


def judge(rows: list[tuple[str, str, dict[str, float]]]) -> list[Comparison]:
    """Return each arm, the best of arms and of seeds, and the arm that is best elsewhere, over what is set by hand."""
    found = []
    for kind in dict.fromkeys(kind for kind, _, _ in rows):
        mine = [(family, row) for at, family, row in rows if at == kind]
        by_hand = [row["by hand"] for _, row in mine]
        best = {
            group: [min(row[name] for name in ("by hand", *names)) for _, row in mine]
            for group, names in (("arms", [*ARMS]), ("seeds", [name for name in SIDES if name.startswith("seed")]))
        }
        elsewhere = []
        for family, row in mine:
            others = [other for name, other in mine if name != family]
            means = {arm: np.mean([np.log(other[arm]) for other in others]) for arm in ("by hand", *ARMS)}
            elsewhere.append(row[min(means, key=means.__getitem__)])
        found += [compare(kind, arm, [row[arm] for _, row in mine], by_hand) for arm in ARMS]
        found.append(compare(kind, "the arm that is best on other families", elsewhere, by_hand))
        found += [compare(kind, f"best of {group} in hindsight", values, by_hand) for group, values in best.items()]
        found.append(compare(kind, "best of arms over best of seeds", best["arms"], best["seeds"]))
    return found


def main() -> None:
    """Ask, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=2, help="problems of each family")
    chosen = parser.parse_args()
    count_processor_time()
    rows: list[tuple[str, str, dict[str, float]]] = []
    for kind, families in FAMILIES.items():
        objective = "latency" if kind == "latency" else "pipeline"
        for family, cases in families.items():
            for at, case in enumerate(islice(cases(), chosen.count)):
                if at == 0:
                    run(case, nullcontext, objective, 1.0)  # compiles
                rows.append((kind, family, integrals(case, objective, chosen.seconds, at)))
                print(
                    *rows[-1][:2], case.graph.name, {k: float(f"{v:.4g}") for k, v in rows[-1][2].items()}, flush=True
                )
    found = judge(rows)
    print_comparisons("primal-dual integral", found)
    table = [{"kind": kind, "family": family} | row for kind, family, row in rows]
    save("learning_shares", table, **vars(chosen), clock="processor", comparisons=[asdict(one) for one in found])


if __name__ == "__main__":
    main()
