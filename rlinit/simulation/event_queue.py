"""Replaying activities event by event: what waits for what, and links that are shared."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from rlinit.errors import InvalidPlan

_END, _FLOW_START, _FLOW_END = range(3)
"""Kinds of events, in the order in which those of the same time happen."""


@dataclass(slots=True)
class Link:
    """A link whose bandwidth the flows on it share equally.

    Parameters
    ----------
    left
        activity -> seconds that its flow would still take alone.
    now_s
        When `left` was last brought up to date.
    version
        Grows with every change; an event of an older version is void.
    """

    left: dict[int, float] = field(default_factory=dict)
    now_s: float = 0.0
    version: int = 0

    def advance(self, now_s: float) -> None:
        """Let the flows move until `now_s`."""
        if self.left:
            done = (now_s - self.now_s) / len(self.left)
            self.left = {at: max(0.0, left - done) for at, left in self.left.items()}
        self.now_s = now_s
        self.version += 1

    def next_end(self) -> tuple[float, int]:
        """Return when the first flow ends if nothing changes, and which one it is."""
        at = min(self.left, key=lambda one: (self.left[one], one))
        return self.now_s + self.left[at] * len(self.left), at


@dataclass(slots=True)
class Activity:
    """Something that takes time.

    Parameters
    ----------
    duration_s
        Seconds, without its flow.
    after
        Activities that must end before it starts.
    flow, link
        Seconds on a shared link if it were alone there, after `duration_s`.
    start_s, end_s
        Filled in by `replay`.
    """

    duration_s: float
    after: list[int] = field(default_factory=list)
    flow: float = 0.0
    link: Link | None = None
    start_s: float = 0.0
    end_s: float = 0.0


class _Replay:
    """Activities on their way; see `replay`.

    Events are (time, kind, activity, version). Lanes are handed on last of their time, so that all that became ready by
    then compete.
    """

    def __init__(self, activities: list[Activity]) -> None:
        self._activities = activities
        self._followers: list[list[int]] = [[] for _ in activities]
        self.waiting = [len(one.after) for one in activities]
        for at, one in enumerate(activities):
            for before in one.after:
                self._followers[before].append(at)
        self._events: list[tuple[float, int, int, int]] = []
        self.num_ended = 0

    def run(self) -> None:
        """Let everything happen that can."""
        for at, count in enumerate(self.waiting):
            if not count:
                self._start(at, 0.0)
        while self._events:
            now_s, kind, at, version = heapq.heappop(self._events)
            one = self._activities[at]
            if one.link is None or self._flow_ended(one.link, kind, at, version, now_s):
                self._finish(at, now_s)

    def _start(self, at: int, now_s: float) -> None:
        one = self._activities[at]
        one.start_s = now_s
        heapq.heappush(self._events, (now_s + one.duration_s, _END if one.link is None else _FLOW_START, at, 0))

    def _flow_ended(self, link: Link, kind: int, at: int, version: int, now_s: float) -> bool:
        """Let an activity's flow start or end; return whether it has ended now."""
        if kind == _FLOW_END and version != link.version:
            return False
        link.advance(now_s)
        flows = kind == _FLOW_START and self._activities[at].flow > 0.0
        if flows:
            link.left[at] = self._activities[at].flow
        else:
            link.left.pop(at, None)
        if link.left:
            end_s, first = link.next_end()
            heapq.heappush(self._events, (max(end_s, link.now_s), _FLOW_END, first, link.version))
        return not flows

    def _finish(self, at: int, now_s: float) -> None:
        """End an activity, and start what waited for it last."""
        one = self._activities[at]
        one.end_s = now_s
        self.num_ended += 1
        for other in self._followers[at]:
            self.waiting[other] -= 1
            if not self.waiting[other]:
                self._start(other, now_s)


def replay(activities: list[Activity]) -> None:
    """Start every activity as early as possible and fill in its start and end.

    Raises
    ------
    InvalidPlan
        Activities wait for each other in a circle.
    """
    run = _Replay(activities)
    run.run()
    if run.num_ended < len(activities):
        stuck = next(at for at, count in enumerate(run.waiting) if count)
        raise InvalidPlan(
            f"activity {stuck} of the plan waits for itself; the order of batches or transfers is circular"
        )
