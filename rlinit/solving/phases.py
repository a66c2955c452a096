"""Phases, of which strategies consist: what each may take of the time, when it runs, and how they are followed.

The strategies themselves are tables of them: `rlinit.solving.stages` for pipelines, `rlinit.solving.placements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlinit.solving.incumbent import Incumbent


class Search(Protocol):
    """What phases share: at least the best schedule and bound so far."""

    @property
    def incumbent(self) -> Incumbent[Any, Any]:
        """The best schedule and bound so far."""
        ...


SearchT = TypeVar("SearchT", bound=Search)


@dataclass(frozen=True, slots=True)
class Condition(Generic[SearchT]):
    """Something that holds for a problem or not, in words and as a function of the search."""

    text: str
    holds: Callable[[SearchT], bool]


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
    """

    name: str
    run: Callable[[SearchT], object]
    share: float = 1.0
    when: tuple[Condition[SearchT], ...] = ()
    because: str = ""


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


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """What `explain` says of a phase: whether it would run, in what share of the time left, and why."""

    name: str
    runs: bool
    share: float
    conditions: tuple[tuple[str, bool], ...]
    because: str


def planned(strategy: Strategy[SearchT], search: SearchT) -> list[PlannedPhase]:
    """Return what `follow` would do, without doing it.

    Parameters
    ----------
    strategy
        The phases.
    search
        What they would share.
    """
    rows = []
    for phase in strategy:
        conditions = tuple((condition.text, condition.holds(search)) for condition in phase.when)
        rows.append(
            PlannedPhase(phase.name, all(held for _, held in conditions), phase.share, conditions, phase.because)
        )
    return rows
