"""Refutes schedules below a goal by a search that learns a clause from every conflict, for files in other formats.

The search decides devices of ops and which of two ops of a device is first. What follows are clauses of bounds
of a start or of a binary, whose name says how it comes out of rows of the program (`rlinit.certificates.clauses`): of
an arc, an end, two ops of a device, or more work than time between two moments, which is edge finding as well. A clause
that is learned names those that propagation needs to refute its opposite.

Lazy clause generation: Ohrimenko, Stuckey, Codish, Propagation via lazy clause generation, Constraints 2009.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlinit.budget import Budget
from rlinit.certificates.clauses import Clauses, Lit, Name, Var, negated
from rlinit.certificates.latency_program import MOST_LOOKED_AT, LatencyProgram
from rlinit.kernels.compiled import njit

_DECAY = 0.95
"""What the activity of an op is worth after a further conflict."""

_RESTART = 100
"""Conflicts before the first restart."""

_LONGER = 1.2
"""Of the conflicts before one restart, those before the next."""


class Learning:
    """A search for a schedule below a goal.

    Parameters
    ----------
    program
        What all schedules satisfy.
    goal
        In units of C.
    budget
        Ends the search.
    """

    def __init__(self, program: LatencyProgram, goal: int, budget: Budget) -> None:
        self.clauses = clauses = Clauses(program, goal)
        self.budget = budget
        self.n, self.time = len(clauses.lead), clauses.time
        self.low: dict[Var, int] = defaultdict(int)
        # Above what any literal says of a start, so that what it always was is what a clause below says.
        self.high: dict[Var, int] = defaultdict(lambda: 1, dict.fromkeys(range(self.n), 2 * program.longest))
        self.left = dict(clauses.every)
        self._placed: dict[tuple[Var, bool], int] = defaultdict(lambda: -1)  # the last change of a bound
        self._trail: list[tuple[Var, bool, int, int, Name]] = []
        self._levels: list[int] = []
        self._dirty, self._events = dict.fromkeys(range(self.n)), list[tuple[Var, bool]]()  # ops in turn
        # Sums of the work of all ops are of 64 bits; half of these leaves room for what is added to them.
        self._adds_up = (self.n + 2) * program.longest <= np.iinfo(np.int64).max // 2
        self._crowded = set(range(program.windows.d))
        self._watches = defaultdict[tuple[Var, bool], list[int]](list)
        self._conflict: tuple[Name, Lit | None] = (), None
        self._known = 0  # changes at the root that have a learned clause of their own
        self._activity, self._bump = [0.0] * self.n, 1.0
        self._arcs = defaultdict[int, list[int]](list)
        for k, (u, v, _) in enumerate(clauses.arcs):
            self._arcs[u].append(k)
            self._arcs[v].append(k)
        self._beside = [
            {i: [w for w in range(self.n) if self._may_overlap(v, w, i)] for i in program.state.devices[v]}
            for v in range(self.n)
        ]
        for v, rest in enumerate(clauses.rest):  # before all else, for no other clause says that of a start
            self._set(
                v,
                False,
                clauses.last - min(rest[i] for i in clauses.devices[v]),
                ("end", v, self.left[clauses.lead[v]]),
            )

    def _may_overlap(self, u: int, v: int, i: int) -> bool:
        later = self.clauses.program.state.later
        return u != v and i in self.clauses.program.state.devices[v] and not (later[u] >> v | later[v] >> u) & 1

    def run(self) -> bool:
        """Search until all is refuted; return False if time ends, or some schedule is not seen to be refuted."""
        wait, most = 0, float(_RESTART)
        while not self.budget.expired:
            if self._propagate():
                if not self._levels:
                    self._keep_root()
                decision = self._decision()
                if decision is None:
                    return False
                self._levels.append(len(self._trail))
                self._set(*decision, ())
                continue
            if not self._levels:
                self._keep_root()
                self._learn()
                return True
            self._learn()
            wait += 1
            if wait > most:
                self._back(0)
                wait, most = 0, most * _LONGER
        return False

    # Bounds

    def _true(self, lit: Lit) -> bool:
        var, up, bound = lit
        return self.low[var] >= bound if up else self.high[var] <= bound

    def _false(self, lit: Lit) -> bool:
        return self._true(negated(lit))

    def _set(self, var: Var, up: bool, bound: int, name: Name) -> bool:
        """Let a literal hold for a reason; return False where its opposite does."""
        if self._true((var, up, bound)):
            return True
        if self._false((var, up, bound)):
            other = self.high[var] + 1 if up else self.low[var] - 1
            self._conflict = name, (var, up, other)
            return False
        bounds = self.low if up else self.high
        self._trail.append((var, up, bounds[var], self._placed[var, up], name))
        bounds[var], self._placed[var, up] = bound, len(self._trail) - 1
        self._events.append((var, up))
        if isinstance(var, int):
            self._touch(var)
        elif var[0] == "x":
            if not up:
                self.left[var[1]] &= ~(1 << var[2])
            for v in self.clauses.members[var[1]]:
                self._touch(v)
            if not up and self.left[var[1]].bit_count() == 1:
                return self._set(("x", var[1], self.left[var[1]].bit_length() - 1), True, 1, ("some", var[1]))
        else:
            self._touch(var[1])
        return True

    def _touch(self, v: int) -> None:
        self._dirty[v] = None
        self._crowded |= {i for i in range(self.clauses.d) if self.left[self.clauses.lead[v]] >> i & 1}

    def _back(self, level: int) -> None:
        """Undo all decisions beyond a level."""
        if len(self._levels) <= level:
            return
        start = self._levels[level]
        del self._levels[level:]
        for var, up, bound, place, _ in reversed(self._trail[start:]):
            (self.low if up else self.high)[var] = bound
            self._placed[var, up] = place
            if not up and not isinstance(var, int) and var[0] == "x":
                self.left[var[1]] |= 1 << var[2]
        del self._trail[start:]
        self._dirty.clear()
        self._events.clear()

    # Propagation

    def _propagate(self) -> bool:
        """Draw conclusions until there are none; return False at a conflict."""
        while self._events or self._dirty or self._crowded:
            if self._events:
                if not self._visit(self._events.pop()):
                    return False
            elif self._dirty:
                v = next(iter(self._dirty))
                del self._dirty[v]
                if not self._revise(v):
                    return False
            elif not self._crowd(self._crowded.pop()):
                return False
        return True

    def _watch(self, at: int, lits: list[Lit]) -> None:
        for var, up, _ in lits[:2]:
            self._watches[var, not up].append(at)

    def _visit(self, event: tuple[Var, bool]) -> bool:
        """Look at the clauses of which a watched literal may be false now."""
        watching, kept = self._watches[event], list[int]()
        for place, at in enumerate(watching):
            lits = self.clauses.learned[at]
            if len(lits) > 1 and self._false(lits[0]) and (lits[0][0], not lits[0][1]) == event:
                lits[0], lits[1] = lits[1], lits[0]
            mine = len(lits) > 1 and (lits[1][0], not lits[1][1]) == event
            if len(lits) > 1 and (not mine or not self._false(lits[1]) or self._true(lits[0])):
                kept.append(at)
                continue
            other = next((j for j in range(2, len(lits)) if not self._false(lits[j])), None)
            if other is not None:
                lits[1], lits[other] = lits[other], lits[1]
                self._watches[lits[1][0], not lits[1][1]].append(at)
                continue
            kept.append(at)
            if not self._set(*lits[0], ("learned", at)):
                self._watches[event] = kept + watching[place + 1 :]
                return False
        self._watches[event] = kept
        return True

    def _revise(self, v: int) -> bool:
        """Draw conclusions from one op's devices, arcs, end, and the ops beside it on its device."""
        clauses, g = self.clauses, self.clauses.lead[v]
        left = self.left[g]
        on = [i for i in range(clauses.d) if left >> i & 1]
        chosen = [i for i in on if self.low["x", g, i]]
        if chosen and len(on) > 1:
            out = ((i, ("one", g, chosen[0], i)) for i in on if i != chosen[0])
            return all(self._set(("x", g, i), False, 0, name) for i, name in out)
        rest = clauses.rest[v]
        last = clauses.last
        if len(on) > 1:
            for i in on:
                if self.low[v] + rest[i] > last:
                    return self._set(("x", g, i), False, 0, ("end", v, 1 << i, last + 1 - rest[i]))
        if not self._set(v, False, last - min(rest[i] for i in on), ("end", v, left)):
            return False
        if not all(self._arc(k) for k in self._arcs[v]):
            return False
        return len(on) > 1 or self._order(v, on[0])

    def _arc(self, k: int) -> bool:
        """Draw conclusions from an arc between two ops, by the devices left of both."""
        clauses = self.clauses
        u, v, _ = clauses.arcs[k]
        (g, a), (h, b) = ((at, self.left[at]) for at in (clauses.lead[u], clauses.lead[v]))
        least = clauses.least(k, a, b)
        name = ("arc", k, a, b)
        if not self._set(v, True, self.low[u] + least, name) or not self._set(u, False, self.high[v] - least, name):
            return False
        for at, mask, turned in ((g, a, False), (h, b, True)):
            if mask & (mask - 1):
                for i in (i for i in range(clauses.d) if mask >> i & 1):
                    ends = (a, 1 << i) if turned else (1 << i, b)
                    start = self.high[v] + 1 - clauses.least(k, *ends)
                    if self.low[u] >= start and not self._set(("x", at, i), False, 0, ("arc", k, *ends, start)):
                        return False
        return True

    def _order(self, u: int, i: int) -> bool:
        """Draw conclusions from an op on a device, and those that are or may be there, too."""
        low, high, lead = self.low, self.high, self.clauses.lead
        mine = self.time[u][i]
        for v in self._beside[u][i]:
            left = self.left[lead[v]]
            if not left >> i & 1:
                continue
            forth = high[v] + 1 - mine  # u must start before, to be first
            back = high[u] + 1 - self.time[v][i]
            ways = low[u] < forth, low[v] < back
            if left & (left - 1):
                name: Name = ("neither", u, v, i, forth, back)
                if not any(ways) and not self._set(("x", lead[v], i), False, 0, name):
                    return False
                continue
            y: Var = ("y", u, v, i) if u < v else ("y", v, u, i)
            if not all(ways):
                for way, first, second, start in ((ways[0], u, v, forth), (ways[1], v, u, back)):
                    name = ("order", first, second, i, start)
                    if not way and not self._set(y, first > second, int(first > second), name):
                        return False
            if low[y] or not high[y]:
                first, second = (u, v) if (u < v) == bool(low[y]) else (v, u)
                least, most = low[first] + self.time[first][i], high[second] - self.time[first][i]
                name = ("order", first, second, i)
                if low[second] < least and not self._set(second, True, least, name):
                    return False
                if high[first] > most and not self._set(first, False, most, name):
                    return False
        return True

    def _crowd(self, i: int) -> bool:
        """Draw conclusions from the work of a device between two moments."""
        lead = self.clauses.lead
        ops = [v for v in range(self.n) if self.left[lead[v]] >> i & 1 and self.time[v][i]]
        if len(ops) < 2 or len(ops) ** 3 > MOST_LOOKED_AT or not self._adds_up:
            return True
        fixed = np.array([self.left[lead[v]] == 1 << i for v in ops])
        low, high = (np.array([bound[v] for v in ops], np.int64) for bound in (self.low, self.high))
        time = np.array([self.time[v][i] for v in ops], np.int64)
        starts, ends, worst, found = _busy(low, high, time, fixed)

        def window(at: int) -> tuple[int, int, list[int]]:
            """Return the ends of a window, and the work in it by op."""
            start, end = int(starts[at // len(ends)]), int(ends[at % len(ends)])
            return start, end, [_inside(*op, start, end) for op in zip(low, high, time, fixed, strict=True)]

        if worst >= 0:
            start, end, work = window(worst)
            self._conflict = self._energy(i, start, end, ops, work), None
            return False
        for kind, first in zip(("out", "pushed", "pulled"), found.tolist(), strict=True):
            if max(first) >= 0:
                self._crowded.add(i)
                chosen = sorted((at, op) for op, at in enumerate(first) if at >= 0)
                return all(self._push(kind, i, ops, op, *window(at)) for at, op in chosen)
        return True

    def _push(self, kind: str, i: int, ops: list[int], at: int, start: int, end: int, work: list[int]) -> bool:
        """Take a device from an op, or move its start, so that work and time agree again; it is looked at once more."""
        v, room = ops[at], end - start - sum(work) + work[at]
        work[at] = room + 1
        name = self._energy(i, start, end, ops, work, keep=at)
        if kind == "out":
            return self._set(("x", self.clauses.lead[v], i), False, 0, name)
        if kind == "pushed":
            return self._set(v, True, end - room, name)
        return self._set(v, False, start - self.time[v][i] + room, name)

    def _energy(self, i: int, start: int, end: int, ops: list[int], work: list[int], keep: int = -1) -> Name:
        """Return the name of a clause of work, without ops that it does not need."""
        over = sum(work) - (end - start)
        for at in sorted(range(len(ops)), key=work.__getitem__):
            if at != keep and work[at] < over:
                over -= work[at]
                work[at] = 0
        return "energy", i, start, end, tuple((v, e) for v, e in zip(ops, work, strict=True) if e)

    # Conflicts

    def _position(self, lit: Lit) -> int:
        """Return the change that made a literal true; -1 where it always was."""
        var, up, bound = lit
        at = self._placed[var, up]
        while at >= 0:
            old = self._trail[at][2]
            if old < bound if up else old > bound:
                break
            at = self._trail[at][3]
        return at

    def _keep_root(self) -> None:
        """Learn what changed at the root, in clauses of one literal."""
        for var, up, _, _, name in self._trail[self._known :]:
            lit = (var, up, self._at(self._known))
            chosen = self.clauses.named(name, lit)
            self.clauses.roots[self._known] = self.clauses.learn([lit], Counter(self._steps(chosen, lit)))
            self._known += 1

    def _at(self, place: int) -> int:
        """Return the bound that a change set."""
        var, up, *_ = self._trail[place]
        at, bound = self._placed[var, up], (self.low if up else self.high)[var]
        while at != place:
            bound, at = self._trail[at][2], self._trail[at][3]
        return bound

    def _steps(self, chosen: Name, lit: Lit | None) -> Iterator[Name]:
        """Yield a clause after those that say of the root that its other literals are false."""
        for each in self.clauses.lits(chosen):
            if lit is None or each != lit:
                at = self._position(negated(each))
                yield from self._root(at, negated(each))
        yield chosen
        if lit is not None and lit not in self.clauses.lits(chosen):
            yield from self.clauses.implied(chosen, lit)

    def _root(self, at: int, lit: Lit) -> Iterator[Name]:
        """Yield what says that a literal holds at the root, by the change that made it."""
        whole = (lit[0], lit[1], self._at(at))
        yield "learned", self.clauses.roots[at]
        if whole != lit:
            yield "up", *(whole if lit[1] else negated(lit)), (lit if lit[1] else negated(whole))[2]

    def _learn(self) -> None:
        """Learn a clause from a conflict, and go back to where it says something."""
        name, lit = self._conflict
        start = self._levels[-1] if self._levels else 0
        root = self._levels[0] if self._levels else len(self._trail)
        weights, blocks = defaultdict[Lit, int](int), list[tuple[list[Name], int]]()  # from the conflict back
        heap, fresh = list[tuple[int, Lit]](), 0

        def need(lit: Lit, weight: int) -> None:
            nonlocal fresh
            if lit not in weights:
                at = self._position(lit)
                heapq.heappush(heap, (-at, lit))
                fresh += at >= start
                for v in lit[0][1:3] if not isinstance(lit[0], int) and lit[0][0] == "y" else [self._op(lit[0])]:
                    self._activity[v] += self._bump
            weights[lit] += weight

        def resolve(chosen: Name, lit: Lit | None, weight: int) -> None:
            said, lits, pivot = [chosen], self.clauses.lits(chosen), lit
            if lit is not None and lit not in lits:
                said += self.clauses.implied(chosen, lit)
                pivot = next(each for each in lits if each[:2] == lit[:2])
            blocks.append((said, weight))
            for each in lits:
                if each != pivot:
                    need(negated(each), weight)

        resolve(self.clauses.named(name, lit), None, 1)
        kept = list[tuple[int, Lit]]()
        while heap:
            at, lit = heapq.heappop(heap)
            at = -at
            if at < root:  # at the root
                blocks.append((list(self._root(at, lit)), weights[lit]))
                fresh -= at >= start
                del weights[lit]
            elif (fresh == 1 and at >= start) or at < start:
                kept.append((at, lit))
                fresh -= at >= start
            else:
                fresh -= 1
                resolve(self.clauses.named(self._trail[at][4], lit), lit, weights.pop(lit))
        lits = [negated(lit) for _, lit in kept]
        steps = defaultdict[Name, int](int)  # as propagation takes them
        for said, weight in reversed(blocks):
            for each in said:
                steps[each] += weight
        at = self.clauses.learn(lits, steps)
        self._bump /= _DECAY
        if not lits:
            return
        second = kept[1][0] if len(kept) > 1 else -1
        self._back(sum(begin <= second for begin in self._levels))
        self._watch(at, lits)
        self._set(*lits[0], ("learned", at))

    def _op(self, var: Var) -> int:
        return var if isinstance(var, int) else self.clauses.members[var[1]][0]

    def _decision(self) -> Lit | None:
        """Return an open device or order of which there is least room and most was learned."""
        clauses, most = self.clauses, -1.0
        best: Lit | None = None
        on = defaultdict[int, list[int]](list)
        for g, members in clauses.members.items():
            left = self.left[g]
            if left & (left - 1):
                v = members[0]
                times = {i: self.time[v][i] for i in range(clauses.d) if left >> i & 1}
                room = self.high[v] - self.low[v]
                score = (1.0 + 2 * self._activity[v] / self._bump) / ((1 + room) * left.bit_count())
                if score > most:
                    i = min(times, key=lambda i: (times[i], i))
                    best, most = (("x", g, i), True, 1), score
            else:
                for v in members:
                    on[left.bit_length() - 1].append(v)
        for i, ops in on.items():
            for u, v in itertools.combinations(sorted(ops), 2):
                y: Var = ("y", u, v, i)
                if self.low[y] or not self.high[y] or v not in self._beside[u][i]:
                    continue
                forth = self.high[v] - self.low[u] - self.time[u][i]
                back = self.high[u] - self.low[v] - self.time[v][i]
                if self.high[u] + self.time[u][i] <= self.low[v] or self.high[v] + self.time[v][i] <= self.low[u]:
                    continue
                activity = (self._activity[u] + self._activity[v]) / self._bump
                score = (1.0 + activity) / (2 + forth + back)
                if score > most:
                    best, most = (y, forth >= back, int(forth >= back)), score
        return best


@njit(cache=True, nogil=True)
def _inside(low: int, high: int, time: int, fixed: bool, start: int, end: int) -> int:
    """Return the least time that an op takes of that between two times, 0 where it may be on another device."""
    return max(0, min(time, low + time - start, end - high, end - start)) if fixed else 0


@njit(cache=True, nogil=True)
def _busy(low: Any, high: Any, time: Any, fixed: Any) -> Any:
    """Return starts and ends of windows, the one with most work too much or -1, and where ops have to leave or move.

    Parameters
    ----------
    low, high, time, fixed
        (n,) first and last starts of ops, their times, and whether they are on the device.

    Returns
    -------
    tuple
        Starts and ends, in order; the window with too much work, counted by start, then end; and (3, n) the first
        in which an op that may be on the device has no room, and those for which one on it starts later, or sooner.
    """
    starts, ends = np.unique(low), np.unique(high + time)
    count, worst, most = len(ends), -1, 0
    found = np.full((3, len(low)), -1)
    spare = np.zeros((len(starts), count), np.int64)
    for h, start in enumerate(starts):
        for e, end in enumerate(ends):
            left = end - start
            for v in range(len(low) if left > 0 else 0):
                left -= _inside(low[v], high[v], time[v], fixed[v], start, end)
            spare[h, e] = left
            if end > start and left < most:
                worst, most = h * count + e, left
    longest = 0 if worst >= 0 else time.max()
    for h, start in enumerate(starts):
        for e, end in enumerate(ends):
            if end <= start or spare[h, e] >= longest:
                continue
            for v in range(len(low)):
                early, late = min(time[v], low[v] + time[v] - start), min(time[v], end - high[v])
                # What an op has beside the others.
                free = spare[h, e] + _inside(low[v], high[v], time[v], fixed[v], start, end)
                if free >= min(time[v], end - start):
                    continue
                cases = (
                    not fixed[v] and early > free and late > free,
                    fixed[v] and early > free and end - free > low[v],
                    fixed[v] and late > free and start - time[v] + free < high[v],
                )
                for kind in range(3):
                    if cases[kind] and found[kind, v] < 0:
                        found[kind, v] = h * count + e
    return starts, ends, worst, found
