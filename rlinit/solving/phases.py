"""Phases, of which strategies consist, and the driver that follows them: `solve`, `explain` and `bound`.

The strategies themselves are tables of phases: `rlinit.solving.stage_strategies` for pipelines,
`rlinit.solving.placement_strategies`. A `Kind` of problems gives `Form`s, of which the driver knows no more than what
stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from rlinit import solving
from rlinit.agent.selection import check_names
from rlinit.comparison.baselines import Baseline
from rlinit.errors import RlinitError
from rlinit.solving.common.incumbent import Incumbent
from rlinit.solving.common.options import SolveOptions, groups_devices, places_ops, splits_devices, unknown_bound
from rlinit.solving.plans import Request, Solved, checkpointed


class Search(Protocol):
    """What phases share: at least the best schedule and bound so far, and what they began from."""

    @property
    def incumbent(self) -> Incumbent[Any, Any]:
        """The best schedule and bound so far."""
        ...

    start: Any
    """The schedule of a plan to refine, or None."""

    @property
    def origin(self) -> str:
        """Where the first schedule came from."""
        ...


SearchT = TypeVar("SearchT", bound=Search)


@dataclass(frozen=True, slots=True)
class Condition(Generic[SearchT]):
    """Something that holds for a problem or not, in words and as a function of the search."""

    text: str
    holds: Callable[[SearchT], bool]


TIMED: Condition[Any] = Condition("there is a time limit", lambda search: search.options.timed)
NO_PLAN: Condition[Any] = Condition("no plan to refine was given", lambda search: search.start is None)
NO_SCHEDULE: Condition[Any] = Condition("there is no schedule yet", lambda search: search.incumbent.assignment is None)


@dataclass(frozen=True, slots=True)
class Phase(Generic[SearchT]):
    """One step of a strategy.

    Parameters
    ----------
    name
        What `explain` calls it.
    run
        Does it: improves the incumbent's value or bound, and returns when it is done or the budget is spent.
    share
        Of the time that is left when it begins, what it may take at most.
    when
        Runs only where all of these hold.
    because
        Why it is there, and what set its share.
    inside
        Where it runs other phases, on a problem of its own or the same: those, and what they share.
    """

    name: str
    run: Callable[[SearchT], object]
    share: float = 1.0
    when: tuple[Condition[SearchT], ...] = ()
    because: str = field(default="", kw_only=True)
    inside: Callable[[SearchT], tuple[Strategy[Any], Any]] | None = None


Strategy = Sequence[Phase[SearchT]]


def follow(strategy: Strategy[SearchT], search: SearchT) -> None:
    """Run the phases whose conditions hold, one after another, until the gap is closed.

    A phase that fails is noted and passed over; see `Incumbent.part`.

    Parameters
    ----------
    strategy
        The phases.
    search
        What they share.
    """
    incumbent = search.incumbent
    for phase in strategy:
        if incumbent.closed or incumbent.budget.cancelled:
            return
        with incumbent.part(phase.name):
            if all(condition.holds(search) for condition in phase.when):
                with incumbent.within(phase.share):
                    phase.run(search)


def sequence(
    name: str, parts: Strategy[Any], share: float = 1.0, when: tuple[Condition[Any], ...] = (), *, because: str
) -> Phase[Any]:
    """Return the phase that follows others, one after another on the same search, which `explain` shows.

    Parameters
    ----------
    name, share, when, because
        As for `Phase`.
    parts
        The phases.
    """
    return Phase(name, partial(follow, parts), share, when, because=because, inside=lambda search: (parts, search))


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """What `explain` says of a phase: whether it would run, in what share of the time left, and why."""

    name: str
    runs: bool
    share: float
    conditions: tuple[tuple[str, bool], ...]
    because: str


def planned(strategy: Strategy[SearchT], search: SearchT, prefix: str = "") -> list[PlannedPhase]:
    """Return what `follow` would do, without doing it.

    Parameters
    ----------
    strategy
        The phases.
    search
        What they would share.
    prefix
        What names begin with: the phase around them.
    """
    rows = []
    for phase in strategy:
        conditions = tuple((condition.text, condition.holds(search)) for condition in phase.when)
        runs, name = all(held for _, held in conditions), f"{prefix}{phase.name}"
        rows.append(PlannedPhase(name, runs, phase.share, conditions, phase.because))
        if runs and phase.inside is not None:
            rows += planned(*phase.inside(search), f"{name}: ")
    return rows


# -- the driver ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form(Generic[SearchT]):
    """A problem as it was lowered from a request: what the driver needs to know of it.

    Parameters
    ----------
    search
        Knows nothing yet but the schedule of a plan to refine.
    obstacle
        Why there is no schedule, by the problem's data alone; "" where that is not known.
    strategy
        Gives the phases of the method that was asked for; raises `RlinitError` where it does not take the problem.
    parts
        Gives the fields of a plan, from what is known.
    baselines
        Gives what simple rules reach. Phases may append to the list.
    """

    search: SearchT
    obstacle: str
    strategy: Callable[[SearchT], Strategy[SearchT]]
    parts: Callable[[Incumbent[Any, Any]], dict[str, Any]]
    baselines: Callable[[SearchT], list[Baseline[Any]]]


@dataclass(frozen=True, slots=True)
class Kind(Generic[SearchT]):
    """A kind of problems.

    Parameters
    ----------
    form
        Lowers what is asked for; raises `RlinitError` where graph, hardware and options do not fit together.
    methods, heuristics
        Names of all methods, and of the heuristics that may be the agent.
    agents
        Which learned agents there are.
    bounds
        Gives by name, and under ``auto``, the phases that do nothing but prove a bound: of the tables as they are then.
    """

    form: Callable[[Request], Form[SearchT]]
    methods: Collection[str]
    heuristics: Collection[str]
    agents: Literal["stages", "latency"]
    bounds: Callable[[], Mapping[str, Strategy[SearchT]]]


def kind_of(options: SolveOptions) -> Kind[Any]:
    """Return the kind of a problem; its modules are imported now, if they were not before.

    Parameters
    ----------
    options
        The problem.
    """
    if places_ops(options.objective):
        return solving.placement_strategies.PLACEMENTS
    if groups_devices(options):
        return solving.groups.GROUPS
    if options.training is not None:
        return solving.activations.TRAINING if options.chunks == 1 else solving.activations.INTERLEAVED
    if options.activations:
        return solving.activations.ACTIVATIONS
    if splits_devices(options):
        return solving.splits.SPLITS
    return solving.stage_strategies.MEMORY if options.objective == "memory" else solving.stage_strategies.PIPELINES


def check_method(options: SolveOptions, *, bounds: bool = False) -> None:
    """Refuse a method or an agent that does not exist for a problem.

    Parameters
    ----------
    options
        The problem, and the names.
    bounds
        Whether the method is one of `bound`, rather than of `solve`.

    Raises
    ------
    RlinitError
        It is unknown; the message lists those that there are.
    """
    kind = kind_of(options)
    if not bounds:
        check_names(options.method, options.agent, kind.methods, kind.heuristics, kind.agents)
    elif options.method not in (known := kind.bounds()):
        raise unknown_bound(options.method, known, options.objective)


def solve(request: Request) -> Solved:
    """Follow the strategy of a method, from the schedule of a plan if there is one.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    RlinitError
        The method does not take the problem, or the checkpoint is of another one.
    """
    form = kind_of(request.options).form(request)
    search, incumbent, baselines = form.search, form.search.incumbent, list[Baseline[Any]]()

    def solved(known: Incumbent[Any, Any]) -> Solved:
        return Solved(known, form.parts(known), search.origin, baselines)

    strategy = form.strategy(search)
    if form.obstacle:
        incumbent.prove_infeasible(form.obstacle, "the problem's data")
        return solved(incumbent)
    with checkpointed(incumbent, solved, request):
        incumbent.offer(search.start, "plan")
        if incumbent.values is None:  # a plan of another graph, or of other devices
            search.start = None
        baselines = form.baselines(search)
        follow(strategy, search)
        for one in baselines if request.options.keeps_best else ():
            incumbent.offer(one.schedule, one.name)
    return solved(incumbent)


def explain(request: Request) -> list[PlannedPhase]:
    """Return what `solve` would do, phase by phase.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    RlinitError
        The problem is infeasible by its data alone, or the method does not take it.
    """
    form = kind_of(request.options).form(request)
    strategy = form.strategy(form.search)
    if form.obstacle:
        raise RlinitError(f"nothing to solve: {form.obstacle}")
    return planned(strategy, form.search)


def bound(request: Request) -> Incumbent[Any, Any]:
    """Return what one of the bounds of a problem proves, or all of them that are affordable (``auto``).

    Parameters
    ----------
    request
        What is asked for; its method is the name of the bound.

    Raises
    ------
    RlinitError
        The problem is infeasible by its data alone.
    """
    kind = kind_of(request.options)
    form = kind.form(request)
    incumbent: Incumbent[Any, Any] = form.search.incumbent
    if form.obstacle:
        raise RlinitError(f"nothing to bound: {form.obstacle}")
    follow(kind.bounds()[request.options.method], form.search)
    return incumbent
