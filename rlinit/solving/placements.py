"""The phases of a placement: coarse start, local search, modules, windows, programs and bounds, joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlinit.arrays import IntArray
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.solving.incumbent import PlacementIncumbent, for_placement

if TYPE_CHECKING:
    from rlinit.exact.placements.bounds.registry import PlacementBound

__all__ = [
    "PlacementLimits",
    "method_names",
    "placement_bound_phase",
    "placement_bounds",
    "search_coarse",
    "solve_placement",
]

_METHODS = ("auto", "agent", "sweep", "warm", "milp", "split", "branch-and-bound")

_STARTS = ("heft", "greedy", "best-device", "met", "segments")
"""Heuristics of milliseconds that the search begins from, the best of them."""

_NOTHING_FITS = "no placement respects memory, groups, exclusions and links together"

_PROGRAM_OPS = 60
"""Ops (times shards) up to which the full program is worth its time, unless it is asked for by name."""

_SPLIT_OPS = 3_000
"""Ops up to which the modules of a graph are solved on their own."""

_EASY_MODULE_OPS = 24
"""Ops of the largest module up to which modules are mostly searched to the end, which leaves nothing to do."""

_WINDOW_PROGRAM_OPS = 5_000
"""Ops up to which windows of the whole are solved on SCIP, unless it is asked for by name."""

_BRANCHING_OPS = 12
"""Ops up to which branch and bound over all schedules comes first."""

_WINDOW_OPS = 12
"""Ops that a window frees at first; doubled while windows find nothing better."""


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """How much work a phase may do where no time limit is set.

    Parameters
    ----------
    window_nodes, full_nodes
        Branch-and-bound nodes of the program of a window, and of the full one.
    priced_nodes, priced_rounds
        Ops placed in partial choices of devices in a round with memory at prices, and such rounds.
    split_work
        Partial schedules extended in modules.
    rounds
        Times that all windows are gone through.
    """

    window_nodes: int | None = 500
    priced_nodes: int = 1_000_000
    priced_rounds: int = 5
    full_nodes: int | None = 20_000
    split_work: int = 3_000_000
    rounds: int = 1


def method_names() -> tuple[str, ...]:
    """Return the names of all methods: those of phases joined, then the heuristics."""
    from rlinit.heuristics.placements import PLACEMENT_HEURISTICS

    return (*_METHODS, *PLACEMENT_HEURISTICS)


def placement_bounds() -> Mapping[str, PlacementBound]:
    """Return the bounds on the full problem by name, cheapest first."""
    from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS

    return PLACEMENT_BOUNDS


def solve_placement(
    incumbent: PlacementIncumbent,
    *,
    method: str,
    agent: str,
    start: Placement | None,
    window: int | str | None,
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
    from rlinit.heuristics.placements import PLACEMENT_HEURISTICS

    check_names(method, agent, method_names(), PLACEMENT_HEURISTICS, "latency")
    if method == "branch-and-bound":
        _check_branching(incumbent.problem)
    origin = "plan" if start is not None else "none"
    limits = PlacementLimits(full_nodes=None, priced_rounds=1 << 30) if timed else PlacementLimits()
    incumbent.offer(start, "plan")
    placement_bound_phase(incumbent, "path", late=True)
    placement_bound_phase(incumbent, "load")
    if method in PLACEMENT_HEURISTICS:
        _heuristic(incumbent, method, seed)
        origin = method
    elif method == "agent":
        origin = _learned(incumbent, agent, seed)
    elif method == "milp":
        _milp(incumbent, limits)
    elif method == "branch-and-bound":
        _branch_and_bound(incumbent)
    elif method == "split":
        _heuristic(incumbent, "heft", seed)
        origin = "heft"
        _split(incumbent, limits, jobs, "auto")
    else:
        if start is None:
            origin = _coarse(incumbent, agent, seed)
        if method == "sweep":
            _sweep(incumbent, seed, jobs, share=1.0)
        elif method == "warm":
            _windows(incumbent, window, limits)
            _bounds(incumbent)
        else:
            _auto(incumbent, seed, limits, jobs)
    return origin


def _check_branching(problem: PlacementProblem) -> None:
    """Raise RlinitError for a problem that branch and bound does not take, saying why."""
    from rlinit.exact.placements.branch_and_bound import MAX_OPS

    if problem.num_shards != 1 or problem.transfers != "parallel":
        raise RlinitError("method 'branch-and-bound' is for latency with parallel transfers; use 'auto' or 'milp'")
    if problem.num_ops > MAX_OPS:
        raise RlinitError(f"method 'branch-and-bound' takes up to {MAX_OPS} ops, not {problem.num_ops}; use 'auto'")


def _coarse(incumbent: PlacementIncumbent, agent: str, seed: int) -> str:
    """Phase 1: a named heuristic, a named agent, or all quick ones, the best of them; return as `_learned`."""
    from rlinit.heuristics.placements import PLACEMENT_HEURISTICS

    if agent in PLACEMENT_HEURISTICS:
        _heuristic(incumbent, agent, seed)
        return agent
    if agent != "auto":
        return _learned(incumbent, agent, seed)
    for name in _STARTS:
        _heuristic(incumbent, name, seed)
    return f"{', '.join(_STARTS)}; {_learned(incumbent, 'auto', seed)}"


def _learned(incumbent: PlacementIncumbent, name: str, seed: int) -> str:
    """Phase 1 by a learned agent, or by HEFT where none is chosen or it finds nothing; return which, and why."""
    from rlinit.agent.latency_selection import choose_for_latency
    from rlinit.agent.placements.agent import decode_placement

    if incumbent.finished:
        return "no agent: done before"
    choice = choose_for_latency(incumbent.problem, name)
    why = choice.reason
    if choice.agent is not None:
        samples = choice.samples
        if incumbent.budget.remaining_s < choice.agent.sampling_s * incumbent.problem.num_ops:
            samples, why = 0, f"{why}; only the greedy one, for want of time"
        with incumbent.in_phase("agent"):
            found = decode_placement(choice.agent, incumbent.problem, samples=samples, seed=seed)
            if found is not None:
                incumbent.offer(found.placement, "agent")
                return why
        why = "none of the agent's placements fits"
    if incumbent.values is None:
        _heuristic(incumbent, "heft", seed)
        return f"heft: {why}"
    return f"no agent: {why}"


def search_coarse(
    incumbent: PlacementIncumbent,
    graph: Graph,
    *,
    method: str,
    agent: str,
    start: Placement | None,
    seed: int,
    jobs: int,
    timed: bool,
) -> str:
    """Search the coarse problem, bound the whole one; return where the coarse problem's schedule came from.

    What is proven about the coarse problem holds for schedules that keep fused ops together, so none of it is taken.
    """
    from rlinit.coarsening.contraction import coarsen, contract_problem, expand_placement

    with incumbent.in_phase("coarsen"):
        coarse = coarsen(graph, chains=True)
        problem = contract_problem(coarse, incumbent.problem)
    with incumbent.within(0.6):
        inner = for_placement(problem, incumbent.budget, incumbent.target_gap, None)
        with incumbent.in_phase(f"search of {problem.num_ops} coarse ops"):
            origin = solve_placement(
                inner,
                method="sweep" if method == "auto" else method,
                agent=agent,
                start=None,
                window="auto",
                seed=seed,
                jobs=jobs,
                timed=timed,
            )
            if inner.assignment is not None:
                incumbent.offer(expand_placement(coarse, incumbent.problem, inner.assignment), f"coarse {inner.method}")
    incumbent.offer(start, "plan")
    placement_bound_phase(incumbent, "path", late=True)
    placement_bound_phase(incumbent, "load")
    _bounds(incumbent)
    return origin


def _auto(incumbent: PlacementIncumbent, seed: int, limits: PlacementLimits, jobs: int) -> None:
    """Search, prove by the cheapest means that can, and spend what is left on better schedules."""
    from rlinit.exact.placements.split.search import MAX_MODULE_OPS
    from rlinit.heuristics.placements.local_search import memory_binds

    problem = incumbent.problem
    if problem.num_ops <= _BRANCHING_OPS and problem.num_shards == 1 and problem.transfers == "parallel":
        _branch_and_bound(incumbent, share=0.2)
    largest, binds = _largest_module(problem), memory_binds(problem)
    easy = largest <= _EASY_MODULE_OPS and not binds and problem.transfers == "parallel"
    if binds and problem.num_shards > 1:
        # Moves of single shards stall where devices are full; evolution changes many ops at once.
        with incumbent.within(0.4):
            _heuristic(incumbent, "ea", seed)
    whole = problem.num_shards == 1
    _sweep(incumbent, seed, jobs, share=0.05 if easy else 0.1 if binds and whole else 0.2)
    assembled = None
    if whole and (binds or problem.transfers != "parallel"):
        assembled = _memory_prices(incumbent, limits, share=0.4)
    if binds and whole:
        # Put together for its devices, its order is poor: it is worth a search of its own even where it is worse.
        _sweep(incumbent, seed + 3, jobs, share=0.3, start=assembled)
    if largest <= MAX_MODULE_OPS:
        _split(incumbent, limits, jobs, 1, share=0.7 if easy else 0.35)
    if binds and whole and problem.num_ops <= _WINDOW_PROGRAM_OPS:
        _unordered(incumbent, limits, share=0.4)
    _bounds(incumbent, share=0.45)
    if problem.num_ops * problem.num_shards <= _PROGRAM_OPS:
        _milp(incumbent, limits)
    if incumbent.budget.remaining_s < np.inf:
        _sweep(incumbent, seed + 1, jobs, share=0.7)
    if problem.num_ops <= _WINDOW_PROGRAM_OPS:
        with incumbent.within(0.3):
            _windows(incumbent, "auto", limits)
    if incumbent.budget.remaining_s < np.inf:
        _sweep(incumbent, seed + 2, jobs, share=1.0)


def _largest_module(problem: PlacementProblem) -> float:
    """Return the ops of the largest module that single ops separate; ``inf`` where modules are not to be searched."""
    if problem.num_shards > 1 or problem.num_ops > _SPLIT_OPS:
        return np.inf
    from rlinit.exact.placements.split.separators import channel_cuts

    return max(len(module) for module in channel_cuts(problem, 1))


def _heuristic(incumbent: PlacementIncumbent, name: str, seed: int) -> None:
    """Phase 1: a named heuristic; where it finds nothing that fits, earliest finish.

    A first schedule is made however late it is, so that a short limit spent on loading kernels still gives a plan.
    """
    from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
    from rlinit.heuristics.placements.local_search import earliest_finish_start

    if incumbent.ended(late=incumbent.values is None):
        return
    with incumbent.in_phase(f"coarse: {name}"):
        found = PLACEMENT_HEURISTICS[name](incumbent.problem, seed=seed, budget=incumbent.budget)
        if not incumbent.offer(found, name) and incumbent.values is None:
            incumbent.offer(earliest_finish_start(incumbent.problem), "earliest-finish")


def _sweep(incumbent: PlacementIncumbent, seed: int, jobs: int, share: float, start: Placement | None = None) -> None:
    """Phase 2: local search from `start` or else the incumbent, runs side by side on threads.

    Its kernels release the lock.
    """
    if incumbent.finished:
        return
    from rlinit.heuristics.placements.local_search import sweep_placements

    start = start or incumbent.assignment
    with incumbent.in_phase("sweep"), incumbent.within(share):
        if jobs == 1:
            sweep_placements(
                incumbent.problem,
                seed=seed,
                budget=incumbent.budget,
                start=start,
                on_better=lambda found: incumbent.offer(found, "sweep"),
            )
            return
        from joblib import Parallel, delayed

        runs = Parallel(n_jobs=jobs, backend="threading")(
            delayed(sweep_placements)(incumbent.problem, seed=seed + 7919 * run, budget=incumbent.budget, start=start)
            for run in range(jobs)
        )
        for found in runs:
            incumbent.offer(found, "sweep")


def _split(
    incumbent: PlacementIncumbent, limits: PlacementLimits, jobs: int, channels: Literal[1, "auto"], share: float = 1.0
) -> None:
    """Solve module by module; with one channel and one shard that is exact, and in any case it bounds the whole."""
    if incumbent.finished:
        return
    from rlinit.exact.placements.split.batched import solve_split_batched
    from rlinit.exact.placements.split.solve import SplitResult, solve_split

    def run() -> SplitResult:
        if incumbent.problem.num_shards > 1:
            return solve_split_batched(incumbent.problem, budget=incumbent.budget, channels=channels)
        return solve_split(
            incumbent.problem,
            budget=incumbent.budget,
            channels=channels,
            jobs=jobs,
            upper=incumbent.values[0] if incumbent.values else np.inf,
            max_work=limits.split_work if incumbent.budget.remaining_s == np.inf else 1 << 62,
        )

    with incumbent.in_phase("split"), incumbent.within(share):
        result = run()
        incumbent.offer(result.placement, "split")
        incumbent.raise_bound((result.bound,), "split")
    if channels == "auto" and not incumbent.finished:
        _guarantee(incumbent, result.modules)


def _guarantee(incumbent: PlacementIncumbent, modules: list[IntArray]) -> None:
    """Note how far modules scheduled one after another can be from the optimum (thesis, Table 3.1)."""
    from rlinit.exact.placements.split.bounds import guarantee

    if len(modules) < 2 or incumbent.problem.num_ops > _SPLIT_OPS:
        return
    with incumbent.in_phase("guarantee"), incumbent.within(0.3):
        report = guarantee(incumbent.problem, modules, budget=incumbent.budget)
        incumbent.raise_bound((report.bound_s,), "split")
        factors = [pair.factor for pair in report.pairs]
        incumbent.note = (
            f"{len(modules)} modules; neighbours one after the other are within {min(factors):.3f} to "
            f"{max(factors):.3f} times their optimum, all within {report.factor:.3f} (transfers between them apart)"
        )


def _branch_and_bound(incumbent: PlacementIncumbent, share: float = 1.0) -> None:
    if incumbent.finished:
        return
    from rlinit.exact.placements.branch_and_bound import branch_and_bound

    with incumbent.in_phase("branch and bound"), incumbent.within(share):
        _take(incumbent, branch_and_bound(incumbent.problem, budget=incumbent.budget), "branch-and-bound")


def _windows(incumbent: PlacementIncumbent, window: int | str | None, limits: PlacementLimits) -> None:
    """Phases 2 and 3: free the ops around cut edges, then along the critical path; solve, accept, move on, widen."""
    from rlinit.exact.placements.milp.solve import solve_placement_milp
    from rlinit.placements.window import placement_windows

    if window is None:
        _milp(incumbent, limits)
        return
    size = _WINDOW_OPS if window == "auto" else int(window)
    rounds = limits.rounds if incumbent.budget.remaining_s == np.inf else 1 << 30
    while size > 0 and rounds > 0 and not incumbent.finished and incumbent.assignment is not None:
        rounds -= 1
        before = incumbent.values
        with incumbent.in_phase(f"window: {size} ops"):
            for free in placement_windows(incumbent.problem, incumbent.assignment, size):
                if incumbent.finished:
                    return
                with incumbent.within(0.2):
                    result = solve_placement_milp(
                        incumbent.problem,
                        budget=incumbent.budget,
                        start=incumbent.assignment,
                        free=free,
                        node_limit=limits.window_nodes,
                    )
                incumbent.offer(result.placement, "window")
        if window != "auto":
            rounds = rounds if incumbent.values != before else 0
        elif incumbent.values == before:
            size *= 2
            if size > 2 * incumbent.problem.num_ops:
                return


def _milp(incumbent: PlacementIncumbent, limits: PlacementLimits) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one."""
    from rlinit.exact.placements.milp.solve import PlacementMilpSettings, solve_placement_milp

    if incumbent.finished:
        return

    def on_solution(placement: Placement, _value: float) -> None:
        incumbent.offer(placement, "milp")

    def on_bound(bound: float) -> None:
        incumbent.raise_bound((bound,), "milp")

    queued = incumbent.problem.transfers != "parallel"
    with incumbent.in_phase("milp"), incumbent.within(0.5 if queued else 1.0):
        # Placements queue their transfers first come, first served, and so does the program by default. Where that is a
        # restriction, what it proves is no bound on the problem.
        result = solve_placement_milp(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            lower=incumbent.bounds[0] if incumbent.bounds else None,
            node_limit=limits.full_nodes,
            on_solution=on_solution,
            on_bound=None if queued else on_bound,
        )
        if queued:
            incumbent.offer(result.placement, "milp")
        else:
            _take(incumbent, result, "milp")
    if queued and not incumbent.finished:
        with incumbent.in_phase("milp: any order of transfers"):
            result = solve_placement_milp(
                incumbent.problem,
                budget=incumbent.budget,
                start=incumbent.assignment,
                settings=PlacementMilpSettings(served=False),
                lower=incumbent.bounds[0] if incumbent.bounds else None,
                node_limit=limits.full_nodes,
                on_solution=on_solution,
                on_bound=on_bound,
            )
            _take(incumbent, result, "milp")


def _memory_prices(incumbent: PlacementIncumbent, limits: PlacementLimits, share: float) -> Placement | None:
    """Bound by a chain of parts with memory at prices; return what was cheapest for its parts, put together."""
    if incumbent.finished or incumbent.values is None:
        return None
    from rlinit.exact.placements.bounds.lagrangian_primal import assemble
    from rlinit.exact.placements.bounds.registry import memory_chain

    with incumbent.in_phase("memory prices"), incumbent.within(share):
        chain = memory_chain(incumbent.problem, incumbent.values[0])
        assembled: Placement | None = None
        rounds = limits.priced_rounds
        while chain is not None and rounds > 0 and not incumbent.finished:
            chain.upper = min(chain.upper, incumbent.values[0])
            incumbent.raise_bound((chain.run(limits.priced_nodes, incumbent.budget),), "memory")
            assembled = assemble(chain) or assembled
            incumbent.offer(assembled, "memory prices")
            rounds = 0 if chain.exhausted else rounds - 1
    return assembled


def _unordered(incumbent: PlacementIncumbent, limits: PlacementLimits, share: float) -> None:
    """Solve the program without the order of ops on a device: who holds what, paths and loads, as memory asks for."""
    from rlinit.exact.placements.milp.solve import PlacementMilpSettings, solve_placement_milp

    if incumbent.finished:
        return

    def on_solution(placement: Placement, _value: float) -> None:
        incumbent.offer(placement, "milp without orders")

    def on_bound(bound: float) -> None:
        incumbent.raise_bound((bound,), "milp without orders")

    with incumbent.in_phase("milp without orders"), incumbent.within(share):
        result = solve_placement_milp(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            settings=PlacementMilpSettings(disjunction="none", served=False),
            lower=incumbent.bounds[0] if incumbent.bounds else None,
            node_limit=limits.full_nodes,
            on_solution=on_solution,
            on_bound=on_bound,
        )
        _take(incumbent, result, "milp without orders")


def _take(incumbent: PlacementIncumbent, result: PlacementResult, source: str) -> None:
    """Accept what a solver of the full problem found and proved."""
    incumbent.offer(result.placement, source)
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.infeasible = _NOTHING_FITS
    elif np.isfinite(result.bound):
        incumbent.raise_bound((result.bound,), source)


def _bounds(incumbent: PlacementIncumbent, share: float = 1.0) -> None:
    """Run the bounds on the full problem that hold the others, cheapest first, until the gap closes."""
    with incumbent.within(share):
        for name in ("around", "joined"):
            placement_bound_phase(incumbent, name)


def placement_bound_phase(incumbent: PlacementIncumbent, name: str, late: bool = False) -> None:
    """Raise the bound by one named method, unless there is nothing left to do; `late`: although the time is over."""
    from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS

    if incumbent.ended(late):
        return
    with incumbent.in_phase(f"bound: {name}"):
        bound = PLACEMENT_BOUNDS[name](
            incumbent.problem,
            upper=incumbent.values[0] if incumbent.values else np.inf,
            budget=incumbent.budget,
        )
        if np.isfinite(bound):
            incumbent.raise_bound((bound,), name)
        else:
            incumbent.infeasible = _NOTHING_FITS
