"""The primal-dual integral of `auto` for `latency` with the learned dual ascent among its phases, and without it.

Both sides solve the same problem for as many seconds, in turns; which goes first changes from problem to problem. The
clock is the one on the wall, since that is what phases are given shares of.
Run as ``python -m benchmarks.learning.strategy [--seconds S]``.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from itertools import islice
from typing import Any

import rlinit
from benchmarks.families.generated_placements import measured_network, unrelated_machines
from benchmarks.learning.protocol import JUDGE_SEEDS, compare, primal_dual_integral, print_comparisons
from benchmarks.record import save
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.solving.placements import PLACEMENT_METHODS

Case = tuple[str, rlinit.Graph, rlinit.Hardware]
_LEAST = 1e-4
"""Integrals below this count as this: a problem that both sides close at once says nothing."""


def cases(count: int) -> list[Case]:
    """Return so many problems of each family."""
    found: list[Case] = []
    for seed in islice(JUDGE_SEEDS, count):
        found.append(("cells", *measured_network((200, 490, 1_000)[seed % 3], seed=seed)))
        shape = ("lu", "gauss", "fft")[seed % 3]
        found.append(("task graphs", *unrelated_machines(shape, (0.1, 1.0)[seed % 2], seed=seed, machines=8)))
        wired = rwnn(WIRINGS[seed % 3], seed=seed, channels=1 + seed % 3, dependence=("weak", "strong")[seed % 2])  # type: ignore[arg-type]
        found.append(("DIVIML", wired, rlinit.Hardware.preset("cpu-t4-a100")))
    for name in islice(("densenet121", "inceptionv3", "resnet101", "xception", "resnet152", "densenet201"), count):
        found.append(("zoo", imagenet.load(name), rlinit.Hardware.preset("moirai-inter")))
    return found


def integral(case: Case, learned: bool, seconds: float) -> float:
    """Return the primal-dual integral of one side."""
    whole = PLACEMENT_METHODS["auto"]
    try:
        if not learned:
            PLACEMENT_METHODS["auto"] = tuple(phase for phase in whole if phase.name != "bound flow")
        plan = rlinit.schedule(case[1], case[2], objective="latency", time_limit_s=seconds)
    finally:
        PLACEMENT_METHODS["auto"] = whole
    history = [
        (one.time_s, one.values[0] if one.values else None, one.bounds[0] if one.bounds else None)
        for one in plan.history
    ]
    return max(_LEAST, primal_dual_integral(history, seconds))


def main() -> None:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=5, help="problems of each family")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for at, case in enumerate(cases(chosen.count)):
        if at == 0:
            integral(case, True, 2.0)  # compiles
        row: dict[str, Any] = {"family": case[0], "graph": case[1].name, "load": os.getloadavg()[0]}
        for learned in (True, False) if at % 2 else (False, True):
            row["with" if learned else "without"] = integral(case, learned, chosen.seconds)
        rows.append(row)
        print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    found = []
    for family in [*dict.fromkeys(row["family"] for row in rows), "all"]:
        mine = [row for row in rows if family in (row["family"], "all")]
        sides = [[row[side] for row in mine] for side in ("with", "without")]
        found.append(compare(family, f"primal-dual integral, {chosen.seconds:g} s", *sides))
    print_comparisons("auto with the learned ascent over auto without it", found)
    settings = {"seconds": chosen.seconds, "count": chosen.count}
    save("learning_strategy", rows, **settings, comparisons=[asdict(one) for one in found])


if __name__ == "__main__":
    main()
