"""The placement program with one start for each op: `latency` with transfers in parallel, whole or in a window.

In a window it holds only what the window can change. Fixed ops that nothing free can delay are constants, those that
nothing free waits behind hang on the makespan, and of a device's fixed ops only neighbours are ordered by a row.
"""

from __future__ import annotations

import itertools

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.exact.placements.milp.base_model import PlacementModel
from rlinit.exact.solvers.linear_model import Affine
from rlinit.placements.problem import Placement
from rlinit.placements.timeline import timeline


class OpModel(PlacementModel):
    """``S[v]`` is the start of op v: a variable, a constant (early ops) or C less a constant (late ones)."""

    def write(self) -> None:
        """Add starts, precedence, chains and disjunctions."""
        problem = self.problem
        self.s: dict[int, int] = {}
        # (u, i, w, j, handle): z[u, w, i, j] is 1 iff u is on i and w on j.
        self.flows: list[tuple[int, int, int, int, int]] = []
        # (v, i, w, handle): the handle is 1 iff v runs before w on device i.
        self.switches: list[tuple[int, int, int, int]] = []
        self.starts_of: list[Affine] = [self._start(v) for v in range(problem.num_ops)]
        self._heads_and_tails()
        for u, w in problem.edges.tolist():
            self._edge(u, w)
        self._chains()
        self._disjunctions()
        self.add_loads()

    def _start(self, v: int) -> Affine:
        devices = self.devices_of(v)
        if not self.windows.free[v] and (settled := self.fixed_start(v, devices[0])) is not None:
            return settled
        low = float(self.head[v, devices].min())
        high = self.limit - float(self.rest[v, devices].min())
        self.s[v] = self.linear.continuous(low, max(low, high))
        return Affine({self.s[v]: 1.0})

    def _work(self, v: int) -> Affine:
        """Return the sum over i of t(v, i) x[v, i]."""
        total = Affine()
        for i in self.devices_of(v):
            total.add(self.duration(v, i))
        return total

    def _heads_and_tails(self) -> None:
        """Sum of head(v, i) x[v, i] <= S[v] and S[v] + sum of (t + tail)(v, i) x[v, i] <= C (condition 2)."""
        for v in self.s:
            first, last = Affine({self.s[v]: -1.0}), Affine({self.s[v]: 1.0, self.makespan: -1.0})
            for i in self.devices_of(v):
                first.add(self.on(v, i), float(self.head[v, i]))
                last.add(self.on(v, i), float(self.rest[v, i]))
            if len(first.coefs) > 1:
                self.linear.at_most(first, 0.0)
            self.linear.at_most(last, 0.0)
        self.floor_of_settled()

    def _edge(self, u: int, w: int) -> None:
        """S[u] + duration(u) + transfer(u, w) <= S[w] (condition 3; Moirai 4a, 4b and 7).

        Rows of settled ops are in the heads and tails of the others.
        """
        if u not in self.s or w not in self.s:
            return
        row = Affine(self.starts_of[u].coefs).add(self._work(u)).add(self.starts_of[w], -1.0)
        i_of, j_of = self.devices_of(u), self.devices_of(w)
        if self.problem.group[u] == self.problem.group[w]:
            self.linear.at_most(row, 0.0)
        elif len(i_of) == 1 or len(j_of) == 1:
            for i, j in itertools.product(i_of, j_of):
                seconds = self.transfer(u, i, j)
                together = self.on(u, i) if len(j_of) == 1 else self.on(w, j)
                if np.isfinite(seconds):
                    row.add(together, seconds)
                else:
                    self.linear.equal(together, 0.0)
            self.linear.at_most(row, 0.0)
        else:
            self._flow(u, w, row)

    def _flow(self, u: int, w: int, row: Affine) -> None:
        """Sum over j of z[i, j] = x[u, i], sum over i of z[i, j] = x[w, j]; transfer(i, j) z[i, j] added to the row.

        Where all links cost the same, z[i, i] <= x[u, i] and z[i, i] <= x[w, i] are enough.
        """
        i_of, j_of = self.devices_of(u), self.devices_of(w)
        seconds = {(i, j): self.transfer(u, i, j) for i in i_of for j in j_of}
        apart = [value for (i, j), value in seconds.items() if i != j]
        if min(apart) == max(apart) and np.isfinite(apart[0]):
            row.constant += apart[0]
            if apart[0] > 0:
                for i in set(i_of) & set(j_of):
                    handle = self._product(u, i, w, i)
                    self.row((Affine({handle: 1.0}), 1.0), (self.on(u, i), -1.0))
                    self.row((Affine({handle: 1.0}), 1.0), (self.on(w, i), -1.0))
                    row.coefs[handle] = -apart[0]
        else:
            sums = {(u, i): Affine().add(self.on(u, i), -1.0) for i in i_of}
            sums |= {(w, j): Affine().add(self.on(w, j), -1.0) for j in j_of}
            for (i, j), value in seconds.items():
                if np.isfinite(value):
                    handle = self._product(u, i, w, j)
                    sums[u, i].coefs[handle] = sums[w, j].coefs[handle] = 1.0
                    row.coefs[handle] = value
            for total in sums.values():
                self.linear.equal(total, 0.0)
        self.linear.at_most(row, 0.0)

    def _product(self, u: int, i: int, w: int, j: int) -> int:
        handle = self.linear.continuous(0.0, 1.0)
        self.flows.append((u, i, w, j, handle))
        return handle

    def _chains(self) -> None:
        """S[v] + t(v) <= S[w] for neighbours v, w among the fixed ops of a device."""
        after = self.windows.after
        for v, i in np.argwhere(after >= 0).tolist():
            w = int(after[v, i])
            self.orders.append((v, i, w, -1, True))
            if v in self.s and w in self.s:
                self.row((self.starts_of[v], 1.0), (self.starts_of[w], -1.0), limit=-float(self.least[v, i]))

    # Disjunctions (condition 7, Moirai equation 6).

    def _disjunctions(self) -> None:
        windows = self.windows
        free = np.flatnonzero(windows.free).tolist()
        self._free_pairs(free)
        if len(free) < self.problem.num_ops:
            chains = [windows.fixed_order(i) for i in range(self.problem.num_devices)]
            for f in free:
                for i in self.devices_of(f):
                    self._among(f, i, chains[i])

    def _among(self, f: int, i: int, chain: IntArray) -> None:
        """Order a free op among the fixed ones of device i.

        Those that only fit before it are a prefix and those that only fit after it a suffix of the chain: one row at
        each end. Between them o[f, k] = 1 iff f is on i and before k, so that o[f, k] <= x[f, i] and o grows with k.
        """
        if not len(chain):
            return
        windows, limit, rest_s = self.windows, self.windows.limit_s, self.windows.rest_s
        span = windows.head_s[f, i] + windows.least_s[f, i] + rest_s[chain, i]
        f_first = (span <= limit) & ~windows.precedes[chain, f]
        span = windows.head_s[chain, i] + windows.least_s[chain, i] + rest_s[f, i]
        k_first = (span <= limit) & ~windows.precedes[f, chain]
        if (~f_first & ~k_first).any():
            self.linear.equal(Affine().add(self.on(f, i)), 0.0)
            return
        only_before, only_after = chain[~f_first], chain[~k_first]
        if len(only_before):
            self._decided(int(only_before[-1]), f, i, f)
        if len(only_after):
            self._decided(f, int(only_after[0]), i, f)
        previous = -1
        for k in chain[f_first & k_first].tolist():
            previous = self._insert(f, k, i, previous)

    def _decided(self, first: int, second: int, i: int, f: int) -> None:
        """S[first] + t <= S[second] if f, one of the two, is on i; between a settled op and f it is in f's window."""
        self.orders.append((first, i, second, -1, True))
        k = second if first == f else first
        if k not in self.s or self.windows.precedes[first, second]:
            return
        row = Affine({self.s[first]: 1.0, self.s[second]: -1.0}, float(self.least[first, i]))
        for j in self.devices_of(f):
            if j != i:
                slack = self._slack(first, i if first == k else j, second, i if second == k else j, i)
                row.add(self.on(f, j), -slack)
        self.linear.at_most(row, 0.0)

    def _slack(self, first: int, i: int, second: int, j: int, at: int) -> float:
        """Return the most by which S[first] + t(first, at) can exceed S[second], the first on i and the second on j."""
        return self.limit - float(self.rest[first, i]) + float(self.least[first, at]) - float(self.head[second, j])

    def _insert(self, f: int, k: int, i: int, previous: int) -> int:
        """Add o[f, k] with both its rows and return it."""
        handle = self.linear.binary()
        self.switches.append((f, i, k, handle))
        self.orders.append((f, i, k, handle, True))
        self.orders.append((k, i, f, handle, False))
        first = Affine({self.s[f]: 1.0, self.s[k]: -1.0}, float(self.least[f, i]))
        second = Affine({self.s[k]: 1.0, self.s[f]: -1.0}, float(self.least[k, i]))
        for j in self.devices_of(f):
            first.add(self.on(f, j), -self._slack(f, j, k, i, i))
            if j != i:
                second.add(self.on(f, j), -self._slack(k, i, f, j, i))
        first.coefs[handle] = self._slack(f, i, k, i, i)
        second.coefs[handle] = -self._slack(k, i, f, i, i)
        self.linear.at_most(first, 0.0)
        self.linear.at_most(second, 0.0)
        self.row((Affine({handle: 1.0}), 1.0), (self.on(f, i), -1.0))
        if previous >= 0:
            self.row((Affine({previous: 1.0}), 1.0), (Affine({handle: 1.0}), -1.0))
        return handle

    def _free_pairs(self, free: list[int]) -> None:
        """Order the pairs of free ops that may share a device, where their windows leave a choice."""
        windows, allowed = self.windows, self.windows.allowed
        self._works = {f: self._work(f) for f in free}
        tail = np.where(allowed, self.tail, np.inf).min(axis=1)
        self._latest = (self.limit - tail).tolist()
        self._earliest = np.where(allowed, self.head, np.inf).min(axis=1).tolist()
        ops, rest_s = np.array(free, np.int64), windows.rest_s
        for at, f in enumerate(free):
            others = ops[at + 1 :]
            others = others[~windows.precedes[f, others] & ~windows.precedes[others, f]]
            here = self.devices_of(f)
            common = allowed[np.ix_(others, here)]
            ends = windows.head_s[f, here] + windows.least_s[f, here]
            f_first = (ends + rest_s[np.ix_(others, here)] <= windows.limit_s).tolist()
            ends_of = (windows.head_s + windows.least_s)[np.ix_(others, here)]
            g_first = (ends_of + rest_s[f, here] <= windows.limit_s).tolist()
            for row in np.flatnonzero(common.any(axis=1)).tolist():
                g = int(others[row])
                orders = [(i, f_first[row][k], g_first[row][k]) for k, i in enumerate(here) if common[row, k]]
                self._free_pair(f, g, orders)

    def _free_pair(self, f: int, g: int, orders: list[tuple[int, bool, bool]]) -> None:
        """Order two free ops, given on which devices which of them may be first."""
        for i, f_first, g_first in orders:
            if not f_first and not g_first:
                self.row((self.on(f, i), 1.0), (self.on(g, i), 1.0), limit=1.0)
        orders = [order for order in orders if order[1] or order[2]]
        if orders:
            self._directed(f, g, orders)

    def _directed(self, f: int, g: int, orders: list[tuple[int, bool, bool]]) -> None:
        """o[f, g] + o[g, f] >= x[f, i] + x[g, i] - 1 on each device i; S[f] + duration(f) - S[g] <= M (1 - o[f, g]).

        One of the two is binary where there is a choice at all; x then decides what is left.
        """
        choice = any(f_first and g_first for _, f_first, g_first in orders)
        both: list[int] = []
        for at, (first, second) in enumerate(((f, g), (g, f))):
            handle = -1
            if any(order[1 + at] for order in orders):
                handle = self.linear.binary() if choice and at == 0 else self.linear.continuous(0.0, 1.0)
                most = self._latest[first] - self._earliest[second]
                if most > 0:
                    row = Affine(self._works[first].coefs, self._works[first].constant)
                    row.coefs |= {self.s[first]: 1.0, self.s[second]: -1.0, handle: most}
                    self.linear.at_most(row, most)
            both.append(handle)
        for i, *may in orders:
            row = Affine(constant=-1.0).add(self.on(f, i)).add(self.on(g, i))
            for at, (first, second) in enumerate(((f, g), (g, f))):
                if may[at]:
                    row.coefs[both[at]] = -1.0
                    self.switches.append((first, i, second, both[at]))
                    # Only the binary says which comes first: the other may be 1 as well, where time allows.
                    self.orders.append((first, i, second, both[0] if all(may) else -1, at == 0))
            self.linear.at_most(row, 0.0)

    # Points.

    def starts(self, device: IntArray, point: FloatArray) -> FloatArray:
        """Return the (n, d) starts of a point, in the model's unit.

        For the arguments see `PlacementModel.starts`.
        """
        start = np.zeros((self.problem.num_ops, self.problem.num_devices))
        for v, handle in self.s.items():
            start[v] = point[handle]
        self.late_starts(start, float(point[self.makespan]))
        return start

    def encode(self, placement: Placement) -> FloatArray:
        """Return the point of a placement inside the windows."""
        point = np.zeros(self.linear.num_variables)
        device = placement.device[:, 0]
        run = timeline(self.problem, placement)
        self.encode_devices(placement.device, point)
        point[self.makespan] = max(run.makespan_s / self.unit, self.linear.lower[self.makespan])
        for v, handle in self.s.items():
            point[handle] = run.start_s[v, device[v]] / self.unit
        for u, i, w, j, handle in self.flows:
            point[handle] = device[u] == i and device[w] == j
        place = inverse_of(placement.sequence // self.problem.num_devices)
        for v, i, w, handle in self.switches:
            if device[v] == device[w] == i:
                point[handle] = place[v] < place[w]
        return point
