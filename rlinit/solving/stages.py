"""The phases of a stage problem: coarse start, annealing, ideals, windows, programs and bounds, joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.solving.incumbent import StageIncumbent
from rlinit.solving.stage_phases import (
    BOUNDS,
    PhaseLimits,
    agent_coarse,
    bound_phase,
    coarse,
    exact_ideals,
    full_program,
    windows,
)
from rlinit.stages.problem import StageAssignment

__all__ = ["Window", "bound_stages", "solve_stages", "stage_bounds"]

Window = int | Literal["auto"] | None

_FEW_IDEALS = 50_000
"""Up to here the dynamic program over ideals is the cheapest proof there is, so it runs before other bounds."""


def stage_bounds(objective: Literal["pipeline", "memory"]) -> tuple[str, ...]:
    """Return the names of the bounds on the full problem that apply to an objective, cheapest first."""
    return tuple(BOUNDS) if objective == "pipeline" else ("simple",)


def solve_stages(
    incumbent: StageIncumbent,
    *,
    method: str,
    agent: str,
    start: StageAssignment | None,
    window: Window,
    seed: int,
    jobs: int,
    timed: bool,
) -> str:
    """Run the phases a method consists of; return where the coarse schedule came from.

    Raises
    ------
    RlinitError
        An unknown method or agent.
    """
    from rlinit.agent.selection import check_names
    from rlinit.heuristics.stages import STAGE_HEURISTICS

    methods = ("auto", "warm", "milp", "ideals", "agent", *STAGE_HEURISTICS)
    check_names(method, agent, methods, STAGE_HEURISTICS, "stages")
    incumbent.offer(start, "plan")
    bound_phase(incumbent, "simple")
    limits = PhaseLimits(window_nodes=None, full_nodes=None) if timed else PhaseLimits()
    coarse_by = _Coarse(incumbent, seed, limits, jobs)
    if method == "ideals":
        coarse_by.heuristic("natural")
        exact_ideals(incumbent, limits.ideal_cap)
    elif method == "milp":
        full_program(incumbent, limits)
    elif method == "agent":
        from rlinit.agent.selection import SHIPPED_STAGES

        coarse_by.agent(SHIPPED_STAGES if agent == "auto" else agent, "natural")
    elif method == "warm":
        if start is None:
            coarse_by.named(agent)
        windows(incumbent, _gammas(window, incumbent), limits, coarse_by.doubt)
        _bounds(incumbent)
    elif method == "auto":
        _auto(incumbent, agent, start is not None, coarse_by)
    else:
        coarse_by.heuristic(method)
    return "plan" if start is not None else coarse_by.origin


def bound_stages(incumbent: StageIncumbent, method: str) -> None:
    """Raise the bound by one of `stage_bounds`, by ``ideals``, or by all that are affordable (``auto``)."""
    bound_phase(incumbent, method if method in BOUNDS else "simple")
    if method == "ideals" or (method == "auto" and not exact_ideals(incumbent, _FEW_IDEALS)):
        exact_ideals(incumbent, PhaseLimits().ideal_cap)
    if method == "auto":
        _bounds(incumbent)


@dataclass(slots=True)
class _Coarse:
    """Phase 1 by name: a heuristic's or an agent's. Keeps where the schedule came from, and the agent's doubt."""

    incumbent: StageIncumbent
    seed: int
    limits: PhaseLimits
    jobs: int
    origin: str = "none"
    doubt: FloatArray | None = None

    def heuristic(self, name: str, why: str = "") -> None:
        """Run a heuristic."""
        coarse(self.incumbent, name, self.seed, self.limits, self.jobs)
        self.origin = f"{name}: {why}" if why else name

    def agent(self, name: str, otherwise: str | None) -> None:
        """Run the agent of this name; where ``auto`` chooses none, or it finds nothing, the heuristic `otherwise`.

        With None annealing follows anyway, and only the reason is kept.
        """
        from rlinit.agent.selection import choose_for_stages

        choice = choose_for_stages(self.incumbent.problem, name)
        if choice.agent is None:
            if otherwise is not None:
                self.heuristic(otherwise, choice.reason)
            else:
                self.origin = f"natural, then anneal: {choice.reason}"
            return
        self.origin = choice.reason
        self.doubt = agent_coarse(self.incumbent, choice.agent, choice.decoding, self.seed)
        if otherwise is not None and self.doubt is None and self.incumbent.values is None:
            self.heuristic(otherwise, "no order of the agent can be sliced within the capacities")

    def named(self, name: str) -> None:
        """Run a heuristic or a checkpoint's agent."""
        from rlinit.heuristics.stages import STAGE_HEURISTICS

        if name in STAGE_HEURISTICS:
            self.heuristic(name)
        else:
            self.agent(name, "anneal")


def _gammas(window: Window, incumbent: StageIncumbent) -> list[float]:
    """Return the sequence of window half-widths."""
    if window is None:
        return [np.inf]
    if isinstance(window, int):
        return [float(window)]
    depth = int(incumbent.problem.level.max()) + 1
    return [float(2**i) for i in range(max(depth - 1, 1).bit_length() + 1) if 2**i < depth] + [np.inf]


def _bounds(incumbent: StageIncumbent) -> None:
    """Run the bounds for the objective, cheapest first, until the gap closes."""
    for name in stage_bounds(incumbent.problem.objective):
        bound_phase(incumbent, name)


def _auto(incumbent: StageIncumbent, agent: str, started: bool, coarse_by: _Coarse) -> None:
    """Prove the optimum by the cheapest means that can."""
    seed, limits, jobs = coarse_by.seed, coarse_by.limits, coarse_by.jobs
    if not started and agent == "auto":
        coarse_by.heuristic("natural", "the dynamic program over ideals needs no better start")
    elif not started:
        coarse_by.named(agent)
    if exact_ideals(incumbent, _FEW_IDEALS):
        return
    if not started and agent == "auto":
        coarse_by.agent(agent, None)
    # With many stages no bound closes soon, and a better schedule is worth more than a longer search for a bound.
    _anneal(incumbent, seed, limits, jobs, share=0.25 if incumbent.problem.num_stages <= 4 else 0.6)
    if incumbent.problem.objective == "pipeline":
        for name in ("parametric-cut", "spectral"):
            bound_phase(incumbent, name, share=0.3)
    if exact_ideals(incumbent, limits.ideal_cap):
        return
    with incumbent.within(0.1):
        windows(incumbent, [1.0, 2.0, 4.0], limits, coarse_by.doubt)
    if incumbent.problem.objective == "pipeline":
        # Few large blocks first: their programs close long before that of all stages does.
        for name, blocks in (("merged-2", 2), ("merged-4", 4)):
            if incumbent.problem.num_stages > blocks:
                bound_phase(incumbent, name, share=0.4)
    full_program(incumbent, limits)


def _anneal(incumbent: StageIncumbent, seed: int, limits: PhaseLimits, jobs: int, share: float) -> None:
    """Anneal once; with a time limit, again from other seeds and four times as long, for a share of the time left."""
    with incumbent.within(share):
        coarse(incumbent, "anneal", seed, limits, jobs)
        if incumbent.problem.objective == "pipeline":
            bound_phase(incumbent, "anchored-cut")
        longer = PhaseLimits(evaluations=4_000_000)
        while incumbent.budget.remaining_s < np.inf and not incumbent.finished:
            seed += 1
            coarse(incumbent, "anneal", seed, longer, jobs)
