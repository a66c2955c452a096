"""The phases of solving a placement problem: coarse start, local search, blocks, programs and bounds.

Every phase takes the search, improves the incumbent's value or bound, and returns when it is done, when the gap is
closed or when the budget is spent. Phases know nothing of graphs, files or plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.agent.latency_selection import choose_for_latency, leaves_choice
from rlinit.agent.placements.agent import FAR, NEAR, Lookahead, decode_placement
from rlinit.arrays import MOST_CELLS, IntArray
from rlinit.budget import SIDE_SHARE, TRY_SHARE, UNLIMITED
from rlinit.exact.placements.bounds.registry import JoinedBound
from rlinit.exact.placements.split.batched import solve_split_batched
from rlinit.exact.placements.split.bounds import guarantee
from rlinit.exact.placements.split.load_splits import load_placement
from rlinit.exact.placements.split.separators import channel_cuts, induced, without_side_outputs
from rlinit.exact.placements.split.solve import SplitResult, solve_split
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.heuristics.placements.local_search.search import earliest_finish_start, memory_binds, sweep_placements
from rlinit.heuristics.placements.memory.peak_memory import SHARES, PeakMemory
from rlinit.heuristics.placements.memory.peak_relief import best_of_all
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.solving.common.incumbent import PlacementIncumbent
from rlinit.solving.common.options import SEED_STRIDE, SolveOptions

_STARTS = ("heft", "segments")
"""Heuristics of milliseconds that the search begins from, the best of them; segments where memory binds."""

NOTHING_FITS = "no placement respects memory, groups, exclusions and links together"

FIRST_MOVES = 30_000
"""Moves of the search before the first bound by linear programs: 10 to 40 ms."""


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """How much work a phase may do where no time limit is set.

    Parameters
    ----------
    full_nodes
        Branch-and-bound nodes of the full program.
    split_work
        Partial schedules extended in blocks.
    trial_choices
        Choices of devices and orders by which makespans are refuted.
    """

    full_nodes: int | None = 20_000
    split_work: int = 3_000_000
    trial_choices: int = 20_000


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
    opened
        Whether earliest finish was tried, where a heuristic found nothing.
    joined
        The bound that goes on by turns with search, once it has begun.
    turns
        Turns of search so far.
    """

    incumbent: PlacementIncumbent
    options: SolveOptions
    start: Placement | None
    limits: PlacementLimits
    peak: PeakMemory | None = None
    origin: str = "none"
    opened: bool = False
    joined: JoinedBound | None = None
    turns: int = 0
    _largest: float = -1.0
    _binds: bool | None = None

    @classmethod
    def of(
        cls,
        incumbent: PlacementIncumbent,
        options: SolveOptions,
        start: Placement | None,
        peak: PeakMemory | None = None,
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
        peak
            Where the peak of live tensors counts against memory, how the search keeps to it: that of the incumbent.
        """
        timed = PlacementLimits(full_nodes=None, split_work=UNLIMITED, trial_choices=UNLIMITED)
        limits = timed if options.timed else PlacementLimits()
        return cls(incumbent, options, start, limits, peak, "none" if start is None else "plan")

    @property
    def problem(self) -> PlacementProblem:
        """The problem."""
        return self.incumbent.problem

    def searched(self) -> PlacementProblem:
        """Return the problem as heuristics see it; see `PeakMemory`."""
        return self.problem if self.peak is None else self.peak.counted(self.peak.level)

    @property
    def memory_binds(self) -> bool:
        """Whether devices have too little memory for every schedule that ignores it."""
        if self._binds is None:
            self._binds = memory_binds(self.problem)
        return self._binds

    @property
    def tensors_bind(self) -> bool:
        """Whether live tensors count against memory, and filled a device of some schedule so far."""
        return self.peak is not None and self.peak.binds

    @property
    def largest_block(self) -> float:
        """Ops of the largest block that single ops separate; ``inf`` where blocks are not to be searched."""
        if self._largest < 0:
            searched = self.problem.num_shards == 1 and self.problem.num_ops**2 <= MOST_CELLS
            blocks = channel_cuts(induced(self.problem, without_side_outputs(self.problem)), 1) if searched else []
            self._largest = max(map(len, blocks)) if searched else np.inf
        return self._largest


def relieve_memory(search: PlacementSearch) -> None:
    """Make a schedule that fits, however late, by moving ops off devices that are too full."""
    if search.peak is not None:
        search.incumbent.offer(
            search.peak.last_resort(search.options.seed, search.incumbent.budget), "relief of memory"
        )


# -- coarse schedules ------------------------------------------------------------------------------------------


def run_heuristic(search: PlacementSearch, name: str, *, alone: bool = True) -> None:
    """Phase 1: a named heuristic; where it finds nothing that fits, earliest finish.

    A first schedule is made however late it is, so that a short limit spent on loading kernels still gives a plan.

    Parameters
    ----------
    search
        The search.
    name
        One of `PLACEMENT_HEURISTICS`.
    alone
        Whether it was asked for by name: then earliest finish comes only where it finds nothing.
    """
    incumbent = search.incumbent
    if incumbent.ended(late=incumbent.values is None and not search.opened):
        return
    with incumbent.in_phase(f"coarse: {name}"):
        if search.peak is None:
            incumbent.offer(_by_heuristic(search, name, incumbent.problem), name)
        else:
            _by_levels(search, search.peak, name, alone)
    if incumbent.values is None:
        _open(search)


def _by_heuristic(search: PlacementSearch, name: str, problem: PlacementProblem) -> Placement | None:
    return PLACEMENT_HEURISTICS[name](problem, seed=search.options.seed, budget=search.incumbent.budget)


def _by_levels(search: PlacementSearch, peak: PeakMemory, name: str, alone: bool) -> None:
    """Let a heuristic count more and more of the sum of tensors until what it finds fits.

    It begins without any, or near the last one that fitted where that took long. What fits with less may not fit with
    more, and mostly gives the better schedule.
    """
    incumbent = search.incumbent
    began = incumbent.budget.elapsed_s
    for level in range(max(0, peak.level - 1) if peak.slow else 0, len(SHARES)):
        found = _by_heuristic(search, name, peak.counted(level))
        if found is None:
            break
        if incumbent.offer(found, name) or peak.fits(found):
            peak.level = level
            break
        if not alone:
            _open(search)
        peak.slow = incumbent.budget.elapsed_s - began > TRY_SHARE * incumbent.budget.remaining_s
        if incumbent.finished or peak.slow:
            break


def _open(search: PlacementSearch) -> None:
    """Make a first schedule, once and however late, where a heuristic has found none: by earliest finish.

    Where live tensors bind, it counts them on the way.
    """
    incumbent, peak = search.incumbent, search.peak
    if search.opened or incumbent.closed or incumbent.budget.cancelled:
        return
    search.opened = True
    with incumbent.in_phase("coarse: earliest finish"):
        if not search.tensors_bind:
            incumbent.offer(earliest_finish_start(search.searched()), "earliest finish")
        if peak is not None and search.tensors_bind:
            incumbent.offer(peak.fitting_start(incumbent.budget), "earliest finish")


def named_start(search: PlacementSearch) -> None:
    """Phase 1: a named heuristic, a named agent, or all quick heuristics, the best of them."""
    name, ran = search.options.agent, list[str]()
    for start in _STARTS if name == "auto" else (name,) if name in PLACEMENT_HEURISTICS else ():
        if name == "auto" and start == "segments" and not (search.memory_binds or search.tensors_bind):
            continue
        ran.append(start)
        with search.incumbent.part(start):
            run_heuristic(search, start, alone=name != "auto")
        if search.start is None:
            search.origin = ", ".join(ran)
    if search.origin == "none":
        learned(search)


def auto_agent(search: PlacementSearch) -> None:
    """Phase 1 by the agent that comes with the package, after the quick heuristics and where there is time for it."""
    before = search.origin
    left_s = search.incumbent.budget.remaining_s
    for ahead in (FAR, NEAR):
        in_time = left_s >= max(ahead.left_s, ahead.seconds(search.problem) / TRY_SHARE)
        if in_time and (ahead is FAR or leaves_choice(search.problem)):
            learned(search, ahead)
            break
    else:
        search.origin = "no agent: heuristics and search are ahead of it in so short a time"
    search.origin = f"{before}; {search.origin}"


def learned(search: PlacementSearch, ahead: Lookahead = FAR) -> None:
    """Phase 1 by a learned agent, or by HEFT where none is chosen or it finds nothing.

    Parameters
    ----------
    search
        The search.
    ahead
        How far the agent looks ahead.
    """
    incumbent = search.incumbent
    if incumbent.finished:
        search.origin = "no agent: done before"
        return
    choice = choose_for_latency(incumbent.problem, search.options.agent)
    why = choice.reason
    if choice.agent is not None:
        with incumbent.in_phase("agent"):
            found = decode_placement(choice.agent, search.searched(), ahead)
            if found is not None:
                incumbent.offer(found, "agent")
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


def every_schedule(search: PlacementSearch) -> None:
    """Look at the schedules of a small problem one by one, where the peak of live tensors counts."""
    incumbent = search.incumbent
    if incumbent.finished or search.peak is None:
        return
    with incumbent.in_phase("every schedule"):
        below = incumbent.values[0] if incumbent.values else np.inf
        found = best_of_all(incumbent.problem, search.peak.live, below, budget=incumbent.budget)
        incumbent.offer(found, "every schedule")


def local_search(search: PlacementSearch, seed: int = 0, moves: int | None = None) -> None:
    """Phase 2: local search from the incumbent, runs side by side on threads.

    Its kernels release the lock.

    Parameters
    ----------
    search
        The search.
    seed
        Added to that of the options.
    moves
        Most of each run; None: as `sweep_placements` has it.
    """
    incumbent, jobs = search.incumbent, search.options.jobs
    if incumbent.finished:
        return
    start, first = incumbent.assignment, search.options.seed + seed
    problem, fits = search.problem, None
    if search.peak is not None:
        problem, fits = search.searched(), search.peak.fits
        if start is not None and search.peak.fits(start):
            problem = search.peak.around(start)
    with incumbent.in_phase("sweep"):
        if jobs == 1:
            sweep_placements(
                problem,
                seed=first,
                evaluations=moves,
                budget=incumbent.budget,
                start=start,
                fits=fits,
                on_better=lambda found: incumbent.offer(found, "sweep"),
            )
            return
        from joblib import Parallel, delayed

        runs = Parallel(n_jobs=jobs, backend="threading")(
            delayed(sweep_placements)(
                problem,
                seed=first + SEED_STRIDE * run,
                evaluations=moves,
                budget=incumbent.budget,
                start=start,
                fits=fits,
            )
            for run in range(jobs)
        )
        for found in runs:
            incumbent.offer(found, "sweep")


def split_blocks(search: PlacementSearch) -> None:
    """Solve block by block, where as many channels as need be join them; note how good that is at least."""
    result = _split(search, "auto")
    if result is not None and not search.incumbent.finished:
        _guarantee(search.incumbent, result.blocks)


def take_bound(incumbent: PlacementIncumbent, bound_s: float, source: str) -> None:
    """Take a bound on the whole problem; an infinite one says that nothing fits.

    Parameters
    ----------
    incumbent
        Takes what is proven.
    bound_s
        Seconds.
    source
        What proved it.
    """
    if np.isfinite(bound_s):
        incumbent.raise_bound((bound_s,), source)
    else:
        incumbent.prove_infeasible(NOTHING_FITS, source)


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
        take_bound(incumbent, result.bound, "split")
    return result


def _guarantee(incumbent: PlacementIncumbent, blocks: list[IntArray]) -> None:
    """Note how far blocks scheduled one after another can be from the optimum (thesis, Table 3.1)."""
    if len(blocks) < 2 or incumbent.problem.num_ops**2 > MOST_CELLS:
        return
    with incumbent.in_phase("guarantee"), incumbent.within(SIDE_SHARE):
        report = guarantee(incumbent.problem, blocks, budget=incumbent.budget)
        take_bound(incumbent, report.bound_s, "split")
        factors = [pair.factor for pair in report.pairs]
        incumbent.note = (
            f"{len(blocks)} blocks; neighbours one after the other are within {min(factors):.3f} to "
            f"{max(factors):.3f} times their optimum, all within {report.factor:.3f} (transfers between them apart)"
        )
