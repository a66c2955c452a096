"""Replaying activities event by event: what waits for what, lanes that hold one at a time, links that are shared."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from rlinit.errors import InvalidPlan

__all__ = ["Activity", "Link", "replay"]


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
    lane
        What it occupies alone, first come, first served; "": nothing.
    flow, link
        Seconds on a shared link if it were alone there, after `duration_s`.
    start_s, end_s
        Filled in by `replay`.
    """

    duration_s: float
    after: list[int] = field(default_factory=list)
    lane: str = ""
    flow: float = 0.0
    link: Link | None = None
    start_s: float = 0.0
    end_s: float = 0.0


def replay(activities: list[Activity]) -> None:
    """Start every activity as early as possible and fill in its start and end.

    Activities that become ready for a lane at the same time take it in the order of the list.

    Raises
    ------
    InvalidPlan
        Activities wait for each other in a circle.
    """
    followers: list[list[int]] = [[] for _ in activities]
    waiting = [0] * len(activities)
    for at, one in enumerate(activities):
        for before in one.after:
            followers[before].append(at)
            waiting[at] += 1
    # Events are (time, kind, activity, version): 0 an end, 1 a flow that starts, 2 a flow's end, 3 a lane to hand on.
    # Kind 3 comes last of its time, so that all that became ready by then compete.
    events: list[tuple[float, int, int, int]] = []
    queues: dict[str, list[tuple[float, int]]] = {}
    held: dict[str, bool] = {}
    num_ended = 0

    def begin(at: int, now_s: float) -> None:
        one = activities[at]
        one.start_s = now_s
        heapq.heappush(events, (now_s + one.duration_s, 1 if one.link is not None else 0, at, 0))

    def ready(at: int, now_s: float) -> None:
        lane = activities[at].lane
        if not lane:
            begin(at, now_s)
            return
        heapq.heappush(queues.setdefault(lane, []), (now_s, at))
        heapq.heappush(events, (now_s, 3, at, 0))

    def watch(link: Link) -> None:
        if link.left:
            end_s, at = link.next_end()
            heapq.heappush(events, (max(end_s, link.now_s), 2, at, link.version))

    for at, count in enumerate(waiting):
        if not count:
            ready(at, 0.0)
    while events:
        now_s, kind, at, version = heapq.heappop(events)
        one = activities[at]
        if kind == 3:
            queue = queues[one.lane]
            if queue and not held.get(one.lane):
                held[one.lane] = True
                begin(heapq.heappop(queue)[1], now_s)
            continue
        if kind in (1, 2) and one.link is not None:
            if kind == 2 and version != one.link.version:
                continue
            one.link.advance(now_s)
            if kind == 1 and one.flow > 0.0:
                one.link.left[at] = one.flow
                watch(one.link)
                continue
            one.link.left.pop(at, None)
            watch(one.link)
        one.end_s = now_s
        num_ended += 1
        if one.lane:
            held[one.lane] = False
            heapq.heappush(events, (now_s, 3, at, 0))
        for other in followers[at]:
            waiting[other] -= 1
            if not waiting[other]:
                ready(other, now_s)
    if num_ended < len(activities):
        stuck = next(at for at, count in enumerate(waiting) if count)
        raise InvalidPlan(
            f"activity {stuck} of the plan waits for itself; the order of batches or transfers is circular"
        )
