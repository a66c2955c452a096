"""The phases of solving a placement problem: coarse start, local search, blocks, windows, programs and bounds.

Every phase takes the search, improves the incumbent's value or bound, and returns when it is done, when the gap is
closed or when the budget is spent. Phases know nothing of graphs, files or plans.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from joblib import Parallel, delayed

from rlinit.agent.latency_selection import choose_for_latency
from rlinit.agent.placements.agent import decode_placement
from rlinit.arrays import IntArray
from rlinit.budget import WorkShares
from rlinit.errors import RlinitError
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.lagrangian_primal import assemble
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS, JoinedBound, memory_chain
from rlinit.exact.placements.branch_and_bound import MAX_OPS, branch_and_bound
from rlinit.exact.placements.milp.solve import PlacementMilpSettings, solve_placement_milp
from rlinit.exact.placements.split.batched import solve_split_batched
from rlinit.exact.placements.split.bounds import guarantee
from rlinit.exact.placements.split.load_splits import load_placement
from rlinit.exact.placements.split.separators import channel_cuts, induced, without_side_outputs
from rlinit.exact.placements.split.solve import SplitResult, solve_split
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.heuristics.placements.local_search import earliest_finish_start, memory_binds, sweep_placements
from rlinit.heuristics.placements.peak_memory import PeakMemory
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import placement_of
from rlinit.placements.window import placement_windows
from rlinit.solving.incumbent import PlacementIncumbent
from rlinit.solving.options import SolveOptions

__all__ = [
    "WINDOW_PROGRAM_OPS",
    "PlacementLimits",
    "PlacementSearch",
    "auto_agent",
    "bound_phase",
    "branch",
    "by_turns",
    "check_branching",
    "closing_bounds",
    "full_program",
    "learned",
    "load_splits",
    "local_search",
    "memory_multipliers",
    "named_start",
    "run_heuristic",
    "search_from_assembled",
    "single_op_blocks",
    "split_blocks",
    "trials",
    "unordered_program",
    "windows",
]

_STARTS = ("heft", "greedy", "best-device", "met", "segments")
"""Heuristics of milliseconds that the search begins from, the best of them."""

_NOTHING_FITS = "no placement respects memory, groups, exclusions and links together"

_SPLIT_OPS = 3_000
"""Ops up to which the blocks of a graph are solved on their own."""

_WINDOW_OPS = 12
"""Ops that a window frees at first; doubled while windows find nothing better."""

_WINDOW_SHARE = 0.2
"""Of the time left, what one window may take."""

_GUARANTEE_SHARE = 0.3
"""Of the time left, what the guarantee of blocks in a row may take."""

_SERVED_SHARE = 0.5
"""Of the time left, what the program first come, first served may take before that of any order of transfers."""

WINDOW_PROGRAM_OPS = 5_000
"""Ops up to which windows of the whole are solved on SCIP, unless they are asked for by name."""

_TURN_SHARE, _LEAST_TURN_S = 0.12, 0.5
"""Of the time left, what a turn of search or proof takes, and seconds that it may take in any case."""

_IDLE_S, _IDLE_TURNS = 0.01, 20
"""Seconds below which a turn did nothing, and turns of that kind after which no more are made."""

_LEAST_SHARE, _MEMORY = 0.3, 0.7
"""Of all turns' time, what search and proof get at least each; what counts of gains and time, a turn later."""

_WINDOW_TURNS = 4
"""Every so many turns of the search are windows."""

_TRIES = 3
"""Times that a heuristic is run, as long as what it finds has too much alive at once."""

_SEED_STRIDE = 7919
"""Between the seeds of runs side by side."""

_TRIAL_CHOICES = 500
"""Choices of devices and orders between two looks at what trials found."""

_UNLIMITED = 1 << 62
"""More work than any clock allows."""


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """How much work a phase may do where no time limit is set.

    Parameters
    ----------
    window_nodes, full_nodes
        Branch-and-bound nodes of the program of a window, and of the full one.
    multiplier_nodes, multiplier_rounds
        Ops placed in partial choices of devices in a round with multipliers on memory, and such rounds.
    split_work
        Partial schedules extended in blocks.
    trial_choices
        Choices of devices and orders by which makespans are refuted.
    rounds
        Times that all windows are gone through.
    """

    window_nodes: int | None = 500
    multiplier_nodes: int = 1_000_000
    multiplier_rounds: int = 5
    full_nodes: int | None = 20_000
    split_work: int = 3_000_000
    trial_choices: int = 20_000
    rounds: int = 1


@dataclass(slots=True)
class PlacementSearch:
    """What the phases of a placement problem share.

    Parameters
    ----------
    incumbent
        The best schedule and bound so far.
    options
        What was asked for.
    start
        The schedule of a plan to refine, where one was handed in.
    limits
        How much work a phase may do.
    peak
        Where the peak of live tensors counts against memory, how the search keeps to it.
    origin
        Where the coarse schedule came from.
    assembled
        What was put together from memory multipliers, worth a search of its own even where it is worse.
    """

    incumbent: PlacementIncumbent
    options: SolveOptions
    start: Placement | None
    limits: PlacementLimits
    peak: PeakMemory | None = None
    origin: str = "none"
    assembled: Placement | None = None
    _largest: float = -1.0
    _binds: bool | None = None

    @classmethod
    def of(
        cls,
        incumbent: PlacementIncumbent,
        options: SolveOptions,
        start: Placement | None,
        live: LiveTensors | None = None,
    ) -> PlacementSearch:
        """Return a search that has only `start`, with limits of work where no clock ends it.

        Parameters
        ----------
        incumbent
            What is known so far.
        options
            What was asked for.
        start
            The schedule of a plan to refine, or None.
        live
            The problem's tensors, where their peak counts against memory.
        """
        peak = None if live is None else PeakMemory(incumbent.problem, live)
        if peak is not None:
            incumbent.value_of, incumbent.repair = peak.value_of, peak.repaired
        timed = PlacementLimits(
            full_nodes=None, multiplier_rounds=1 << 30, split_work=_UNLIMITED, trial_choices=_UNLIMITED, rounds=1 << 30
        )
        limits = timed if options.timed else PlacementLimits()
        return cls(incumbent, options, start, limits, peak, "none" if start is None else "plan")

    @property
    def problem(self) -> PlacementProblem:
        """The problem."""
        return self.incumbent.problem

    @property
    def share(self) -> float:
        """Part of the sum of tensors that searches count beside the problem's own memory; see `PeakMemory`."""
        return 0.0 if self.peak is None else self.peak.share

    def searched(self, start: Placement | None = None) -> PlacementProblem:
        """Return the problem as heuristics and local search see it; see `PeakMemory.searched`."""
        return self.problem if self.peak is None else self.peak.searched(start)

    @property
    def memory_binds(self) -> bool:
        """Whether devices have too little memory for every schedule that ignores it."""
        if self._binds is None:
            self._binds = memory_binds(self.problem)
        return self._binds

    @property
    def largest_block(self) -> float:
        """Ops of the largest block that single ops separate; ``inf`` where blocks are not to be searched."""
        if self._largest < 0:
            searched = self.problem.num_shards == 1 and self.problem.num_ops <= _SPLIT_OPS
            blocks = channel_cuts(induced(self.problem, without_side_outputs(self.problem)), 1) if searched else []
            self._largest = max(map(len, blocks)) if searched else np.inf
        return self._largest


# -- coarse schedules ------------------------------------------------------------------------------------------


def run_heuristic(search: PlacementSearch, name: str) -> None:
    """Phase 1: a named heuristic; where it finds nothing that fits, earliest finish.

    A first schedule is made however late it is, so that a short limit spent on loading kernels still gives a plan.

    Parameters
    ----------
    search
        The search.
    name
        One of `PLACEMENT_HEURISTICS`.
    """
    incumbent = search.incumbent
    if incumbent.ended(late=incumbent.values is None):
        return
    with incumbent.in_phase(f"coarse: {name}"):
        for _ in range(_TRIES):
            share = search.share
            found = PLACEMENT_HEURISTICS[name](search.searched(), seed=search.options.seed, budget=incumbent.budget)
            taken = incumbent.offer(found, name)
            if search.share == share:
                break
        if not taken and incumbent.values is None:
            incumbent.offer(earliest_finish_start(search.searched()), "earliest-finish")


def named_start(search: PlacementSearch) -> None:
    """Phase 1: a named heuristic, a named agent, or all quick heuristics, the best of them."""
    name = search.options.agent
    for start in _STARTS if name == "auto" else (name,) if name in PLACEMENT_HEURISTICS else ():
        with search.incumbent.part(start):
            run_heuristic(search, start)
        search.origin = ", ".join(_STARTS) if name == "auto" else name
    if search.origin == "none":
        learned(search)


def auto_agent(search: PlacementSearch) -> None:
    """Phase 1 by the agent that comes with the package, after the quick heuristics and where there is time for it."""
    before = search.origin
    agent = choose_for_latency(search.problem, "auto").agent
    if agent is not None and search.incumbent.budget.remaining_s < agent.sampling_s * search.problem.num_ops:
        search.origin = "no agent: heuristics and search are ahead of it in so short a time"
    else:
        learned(search)
    search.origin = f"{before}; {search.origin}"


def learned(search: PlacementSearch) -> None:
    """Phase 1 by a learned agent, or by HEFT where none is chosen or it finds nothing."""
    incumbent = search.incumbent
    if incumbent.finished:
        search.origin = "no agent: done before"
        return
    choice = choose_for_latency(incumbent.problem, search.options.agent)
    samples, why = choice.samples, choice.reason
    if choice.agent is not None:
        if incumbent.budget.remaining_s < choice.agent.sampling_s * incumbent.problem.num_ops:
            samples, why = 0, f"{why}; only the greedy one, for want of time"
        with incumbent.in_phase("agent"):
            found = decode_placement(choice.agent, search.searched(), samples=samples, seed=search.options.seed)
            if found is not None:
                incumbent.offer(found.placement, "agent")
                search.origin = why
                return
        why = "none of the agent's placements fits"
    search.origin = f"no agent: {why}"
    if incumbent.values is None:
        run_heuristic(search, "heft")
        search.origin = f"heft: {why}"


def load_splits(search: PlacementSearch) -> None:
    """Split every op as the multipliers of the load bound have it; by evolution where that fits nowhere."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase("load splits"):
        found = load_placement(search.searched(), incumbent.budget)
        incumbent.offer(found, "load splits")
    if found is None:
        run_heuristic(search, "ea")


# -- search ----------------------------------------------------------------------------------------------------


def local_search(search: PlacementSearch, seed: int = 0, start: Placement | None = None) -> None:
    """Phase 2: local search from `start` or else the incumbent, runs side by side on threads.

    Its kernels release the lock.

    Parameters
    ----------
    search
        The search.
    seed
        Added to that of the options.
    start
        Where to search from; None: the incumbent.
    """
    incumbent, jobs = search.incumbent, search.options.jobs
    if incumbent.finished:
        return
    start = start or incumbent.assignment
    first = search.options.seed + seed
    problem = search.searched(start)
    with incumbent.in_phase("sweep"):
        if jobs == 1:
            sweep_placements(
                problem,
                seed=first,
                budget=incumbent.budget,
                start=start,
                on_better=lambda found: incumbent.offer(found, "sweep"),
            )
            return
        runs = Parallel(n_jobs=jobs, backend="threading")(
            delayed(sweep_placements)(problem, seed=first + _SEED_STRIDE * run, budget=incumbent.budget, start=start)
            for run in range(jobs)
        )
        for found in runs:
            incumbent.offer(found, "sweep")


def memory_multipliers(search: PlacementSearch) -> None:
    """Bound by a chain of segments with multipliers on memory; keep what was cheapest for them, put together."""
    incumbent, limits = search.incumbent, search.limits
    if incumbent.finished or incumbent.values is None:
        return
    with incumbent.in_phase("memory multipliers"):
        chain = memory_chain(incumbent.problem, incumbent.values[0], incumbent.budget)
        rounds = limits.multiplier_rounds
        while chain is not None and rounds > 0 and not incumbent.finished:
            chain.upper = min(chain.upper, incumbent.values[0])
            incumbent.raise_bound((chain.run(limits.multiplier_nodes, incumbent.budget),), "memory")
            search.assembled = assemble(chain) or search.assembled
            incumbent.offer(search.assembled, "memory multipliers")
            rounds = 0 if chain.exhausted else rounds - 1


def search_from_assembled(search: PlacementSearch) -> None:
    """Search from what memory multipliers put together, whose order is poor, or else from the incumbent."""
    local_search(search, 3, search.assembled)


def split_blocks(search: PlacementSearch) -> None:
    """Solve block by block, where as many channels as need be join them; note how good that is at least."""
    result = _split(search, "auto")
    if result is not None and not search.incumbent.finished:
        _guarantee(search.incumbent, result.blocks)


def single_op_blocks(search: PlacementSearch) -> None:
    """Solve block by block, where single ops separate them, which is exact for one input."""
    _split(search, 1)


def _split(search: PlacementSearch, channels: Literal[1, "auto"]) -> SplitResult | None:
    """Solve block by block; with one channel and one shard that is exact, and in any case it bounds the whole."""
    incumbent = search.incumbent
    if incumbent.finished:
        return None
    with incumbent.in_phase("split"):
        if incumbent.problem.num_shards > 1:
            result = solve_split_batched(incumbent.problem, budget=incumbent.budget, channels=channels)
        else:
            result = solve_split(
                incumbent.problem,
                budget=incumbent.budget,
                channels=channels,
                jobs=search.options.jobs,
                upper=incumbent.values[0] if incumbent.values else np.inf,
                max_work=search.limits.split_work,
            )
        incumbent.offer(result.placement, "split")
        incumbent.raise_bound((result.bound,), "split")
    return result


def _guarantee(incumbent: PlacementIncumbent, blocks: list[IntArray]) -> None:
    """Note how far blocks scheduled one after another can be from the optimum (thesis, Table 3.1)."""
    if len(blocks) < 2 or incumbent.problem.num_ops > _SPLIT_OPS:
        return
    with incumbent.in_phase("guarantee"), incumbent.within(_GUARANTEE_SHARE):
        report = guarantee(incumbent.problem, blocks, budget=incumbent.budget)
        incumbent.raise_bound((report.bound_s,), "split")
        factors = [pair.factor for pair in report.pairs]
        incumbent.note = (
            f"{len(blocks)} blocks; neighbours one after the other are within {min(factors):.3f} to "
            f"{max(factors):.3f} times their optimum, all within {report.factor:.3f} (transfers between them apart)"
        )


def windows(search: PlacementSearch) -> None:
    """Phases 2 and 3: free the ops around cut edges, then along the critical path; solve, accept, move on, widen."""
    incumbent, window = search.incumbent, search.options.window
    if window is None:
        full_program(search)
        return
    size = int(window) if isinstance(window, int) else _WINDOW_OPS
    rounds = search.limits.rounds
    while size > 0 and rounds > 0 and not incumbent.finished and incumbent.assignment is not None:
        rounds -= 1
        before = incumbent.values
        with incumbent.in_phase(f"window: {size} ops"):
            _pass_of_windows(search, size)
        if window != "auto":
            rounds = rounds if incumbent.values != before else 0
        elif incumbent.values == before:
            size *= 2
            if size > 2 * incumbent.problem.num_ops:
                return


def _pass_of_windows(search: PlacementSearch, size: int) -> None:
    """Solve the windows of so many ops around the incumbent, one after another."""
    incumbent = search.incumbent
    if incumbent.assignment is None:
        return
    for free in placement_windows(incumbent.problem, incumbent.assignment, size):
        if incumbent.finished:
            return
        with incumbent.part(f"window of {size} ops"), incumbent.within(_WINDOW_SHARE):
            result = solve_placement_milp(
                incumbent.problem,
                budget=incumbent.budget,
                start=incumbent.assignment,
                free=free,
                settings=PlacementMilpSettings(node_limit=search.limits.window_nodes),
            )
            incumbent.offer(result.placement, "window")


def by_turns(search: PlacementSearch) -> None:
    """Search from other seeds, now and then in windows on SCIP, and raise the bound by turns: what gains more, more."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    problem = incumbent.problem
    upper = incumbent.values[0] if incumbent.values else np.inf
    joined = JoinedBound(problem, upper, incumbent.budget, with_chain=problem.num_shards == 1)
    turns = itertools.count(1)

    def prove() -> None:
        with incumbent.in_phase("bound: joined"):
            bound = joined.run(incumbent.budget)
            if np.isfinite(bound):
                incumbent.raise_bound((bound,), "joined")
            else:
                incumbent.prove_infeasible(_NOTHING_FITS, "joined")

    def improve() -> None:
        turn = next(turns)
        if turn % _WINDOW_TURNS == 0 and problem.num_ops <= WINDOW_PROGRAM_OPS:
            windows(search)
        else:
            local_search(search, turn)

    ways = (prove, improve)
    shares = WorkShares(len(ways), _LEAST_SHARE, _MEMORY)
    idle = 0
    while not incumbent.finished and idle < _IDLE_TURNS:
        way, gap, began = shares.choose(), min(incumbent.gap, 1.0), incumbent.budget.elapsed_s
        with incumbent.within(max(_TURN_SHARE, _LEAST_TURN_S / max(incumbent.budget.remaining_s, _LEAST_TURN_S))):
            ways[way]()
        seconds = incumbent.budget.elapsed_s - began
        gain = max(0.0, gap - incumbent.gap)
        idle = idle + 1 if seconds < _IDLE_S and gain == 0.0 else 0
        shares.reward(way, gain, max(seconds, _LEAST_TURN_S))


# -- proofs ----------------------------------------------------------------------------------------------------


def check_branching(problem: PlacementProblem) -> None:
    """Refuse a problem that branch and bound does not take, saying why.

    Raises
    ------
    RlinitError
        Several shards, queues of transfers, or too many ops.
    """
    if problem.num_shards != 1 or problem.transfers != "parallel":
        raise RlinitError("method 'branch-and-bound' is for latency with parallel transfers; use 'auto' or 'milp'")
    if problem.num_ops > MAX_OPS:
        raise RlinitError(f"method 'branch-and-bound' takes up to {MAX_OPS} ops, not {problem.num_ops}; use 'auto'")


def branch(search: PlacementSearch) -> None:
    """Branch and bound over all schedules."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase("branch and bound"):
        _take(incumbent, branch_and_bound(incumbent.problem, budget=incumbent.budget), "branch-and-bound")


def trials(search: PlacementSearch) -> None:
    """Refute makespans below the incumbent's by propagation and branching; take what stands where it is better."""
    incumbent = search.incumbent
    if incumbent.finished or incumbent.values is None:
        return
    problem = incumbent.problem
    with incumbent.in_phase("destructive"):
        trying = DestructiveSearch(problem, upper=incumbent.values[0])
        if incumbent.bounds is not None:
            trying.raise_bound(incumbent.bounds[0])
        while not (incumbent.finished or trying.exhausted or trying.nodes >= search.limits.trial_choices):
            trying.run(_TRIAL_CHOICES, incumbent.budget)
            if trying.standing is not None:
                incumbent.offer(placement_of(problem, *trying.standing), "destructive")
                trying.standing = None
                trying.cut(incumbent.values[0])
            incumbent.raise_bound((trying.bound_s,), "destructive")


def full_program(search: PlacementSearch) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one.

    Placements queue their transfers first come, first served, and so does the program by default. Where that is a
    restriction, what it proves is no bound on the problem, and the program of any order of transfers follows.
    """
    incumbent = search.incumbent
    if incumbent.finished:
        return
    queued = incumbent.problem.transfers != "parallel"
    with incumbent.in_phase("milp"), incumbent.within(_SERVED_SHARE if queued else 1.0):
        result = _program(search, PlacementMilpSettings(), "milp", bounds=not queued)
        if queued:
            incumbent.offer(result.placement, "milp")
        else:
            _take(incumbent, result, "milp")
    if queued and not incumbent.finished:
        with incumbent.in_phase("milp: any order of transfers"):
            result = _program(search, PlacementMilpSettings(served=False), "milp")
            _take(incumbent, result, "milp")


def unordered_program(search: PlacementSearch) -> None:
    """Solve the program without the order of ops on a device: who holds what, paths and loads, as memory asks for."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase("milp without orders"):
        settings = PlacementMilpSettings(disjunction="none", served=False)
        _take(incumbent, _program(search, settings, "milp without orders"), "milp without orders")


def _program(
    search: PlacementSearch, settings: PlacementMilpSettings, source: str, *, bounds: bool = True
) -> PlacementResult:
    """Solve a program of the whole problem, telling the incumbent of its solutions, and of its bounds if they count."""
    incumbent = search.incumbent

    def on_solution(placement: Placement, _value: float) -> None:
        incumbent.offer(placement, source)

    def on_bound(bound: float) -> None:
        incumbent.raise_bound((bound,), source)

    return solve_placement_milp(
        incumbent.problem,
        budget=incumbent.budget,
        start=incumbent.assignment,
        settings=dataclasses.replace(settings, node_limit=search.limits.full_nodes),
        lower=incumbent.bounds[0] if incumbent.bounds else None,
        on_solution=on_solution,
        on_bound=on_bound if bounds else None,
    )


def _take(incumbent: PlacementIncumbent, result: PlacementResult, source: str) -> None:
    """Accept what a solver of the full problem found and proved."""
    incumbent.offer(result.placement, source)
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.prove_infeasible(_NOTHING_FITS, source)
    elif np.isfinite(result.bound):
        incumbent.raise_bound((result.bound,), source)


def closing_bounds(search: PlacementSearch) -> None:
    """Run the bounds on the full problem that hold the others, cheapest first, until the gap closes."""
    for name in ("around", "joined"):
        with search.incumbent.part(f"bound {name}"):
            bound_phase(search.incumbent, name)


def bound_phase(incumbent: PlacementIncumbent, name: str, late: bool = False) -> None:
    """Raise the bound by one named method, unless there is nothing left to do; `late`: although the time is over.

    Parameters
    ----------
    incumbent
        Takes what is proven.
    name
        One of `PLACEMENT_BOUNDS`.
    late
        Whether it runs although the time is over.
    """
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
            incumbent.prove_infeasible(_NOTHING_FITS, name)
