"""Bounds on the full stage problem, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from rlinit.exact.effort import PROGRAM_SIZE
from rlinit.exact.stages.bounds.anchored_cut import anchored_cut_bound
from rlinit.exact.stages.bounds.blocks import guess_bound
from rlinit.exact.stages.bounds.convex_cover import MOST_COVERED, ConvexCover, convex_cover_bound
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.bounds.spectral import spectral_bound
from rlinit.exact.stages.ideals.chain_order import ChainOrder
from rlinit.exact.stages.intervals.search import ENOUGH, interval_bound
from rlinit.exact.stages.milp.pipeline import pipeline_lp_bound
from rlinit.solving.common.incumbent import StageIncumbent
from rlinit.stages.problem import Value

NOTHING_FITS = "no assignment respects precedence, memory and exclusions together"

PROGRAM_NODES = 2_000
"""Branch-and-bound nodes of a program on SCIP where no time limit is set, so that runs repeat."""

TOO_LARGE = f"programs on SCIP were left out: more than {PROGRAM_SIZE:,} ops times stages"

_TIMED_INTERVALS = 1_000_000
"""Intervals of ideals at most where a time limit ends the search."""


def stage_bounds(objective: Literal["pipeline", "memory"]) -> tuple[str, ...]:
    """Return the names of the bounds on the full problem that apply to an objective, cheapest first."""
    return tuple(BOUNDS) if objective == "pipeline" else ("simple",)


def bound_phase(incumbent: StageIncumbent, name: str) -> None:
    """Raise the bound by one named method, unless there is nothing left to do.

    Parameters
    ----------
    incumbent
        Takes what is proven.
    name
        One of `BOUNDS`.
    """
    if incumbent.finished:
        return
    with incumbent.in_phase(f"bound: {name}"):
        bounds = BOUNDS[name](incumbent)
        if np.isfinite(bounds[0]):
            incumbent.raise_bound(bounds, name)
        else:
            incumbent.prove_infeasible(NOTHING_FITS, name)


def fits_scip(incumbent: StageIncumbent) -> bool:
    """Return whether the problem is small enough for a program on SCIP; leave a note where it is not."""
    if incumbent.problem.num_nodes * incumbent.problem.num_stages <= PROGRAM_SIZE:
        return True
    incumbent.note = TOO_LARGE
    return False


def _upper(incumbent: StageIncumbent) -> float:
    """Return the incumbent's value, which lets a bound stop early and leave out what cannot matter; inf without one."""
    return incumbent.values[0] if incumbent.values else np.inf


def _chain_order(incumbent: StageIncumbent) -> Value:
    budget, upper = incumbent.budget, _upper(incumbent)
    proven, order = simple_bound(incumbent.problem, budget)[0], ChainOrder.of(incumbent.problem, upper)
    return (proven if order is None else order.raised(proven, upper, budget),)


def _convex_cover(incumbent: StageIncumbent) -> Value:
    lower = _lower(incumbent)
    if incumbent.problem.num_nodes > MOST_COVERED:
        return (0.0,)
    cover = ConvexCover(incumbent.problem, incumbent.budget)
    bound = convex_cover_bound(cover, lower=lower, upper=_upper(incumbent), quantum=incumbent.quantum)
    return (bound if bound > lower else 0.0,)


def _cuts(incumbent: StageIncumbent, name: str) -> Value:
    bound = anchored_cut_bound if name == "anchored-cut" else spectral_bound
    return (bound(incumbent.problem, upper=_upper(incumbent), budget=incumbent.budget),)


def _lower(incumbent: StageIncumbent) -> float:
    """Return the bound so far; who gives it back has proven nothing, and does not take over what it rests on."""
    return incumbent.bounds[0] if incumbent.bounds else 0.0


def _intervals(incumbent: StageIncumbent) -> Value:
    lower = _lower(incumbent)
    most = _TIMED_INTERVALS if incumbent.budget.remaining_s < np.inf else ENOUGH
    _, on_bound = incumbent.listeners("intervals")
    upper, budget = _upper(incumbent), incumbent.budget
    bound = interval_bound(incumbent.problem, lower=lower, upper=upper, most=most, budget=budget, on_bound=on_bound)
    return (bound if bound > lower else 0.0,)


def _program(incumbent: StageIncumbent, bound: Callable[..., float], **options: Any) -> Value:
    """Run a bound that is a program of its own."""
    if not fits_scip(incumbent):
        return (0.0,)
    return (bound(incumbent.problem, budget=incumbent.budget, **options),)


def _guess(incumbent: StageIncumbent, only_heavy: bool) -> Value:
    upper = _upper(incumbent)
    return _program(incumbent, guess_bound, upper=upper, node_limit=PROGRAM_NODES, only_heavy=only_heavy)


BOUNDS: Mapping[str, Callable[[StageIncumbent], Value]] = {
    "simple": lambda incumbent: simple_bound(incumbent.problem, incumbent.budget),
    "chain-order": _chain_order,
    "convex-cover": _convex_cover,
    "intervals": _intervals,
    "anchored-cut": partial(_cuts, name="anchored-cut"),
    "spectral": partial(_cuts, name="spectral"),
    "lp-root": partial(_program, bound=pipeline_lp_bound),
    "three-superblock": partial(_guess, only_heavy=True),
    "guess": partial(_guess, only_heavy=False),
}
"""Bounds on the full problem by name, cheapest first. All but `simple` are for `pipeline` only."""
