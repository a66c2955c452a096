"""The placement program with one start for each batch: any number of shards and every way of transferring.

A batch that does not exist may be anywhere; its rows are switched off by how far its end can reach.
"""

from __future__ import annotations

import itertools

import numpy as np

from rlinit.arrays import ROUNDING, FloatArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.placements.milp.base_model import DeviceModel, PlacementMilpSettings
from rlinit.exact.solvers.linear_model import Affine
from rlinit.placements.problem import Placement, PlacementProblem


class BatchModel(DeviceModel):
    """``S[v, i]`` is the start of batch (v, i) (DIVIML's s[i, u]), ``R[v, i, j]`` that of its transfer to device j.

    For the parameters see `DeviceModel`.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        windows: ShardWindows,
        settings: PlacementMilpSettings,
        *,
        limit_s: float,
        lower_s: float,
        budget: Budget,
    ) -> None:
        super().__init__(problem, windows, settings, limit_s=limit_s, lower_s=lower_s, budget=budget)
        n = problem.num_ops
        # Whether every batch of one op ends before any of another starts, by data.
        self._leads = np.zeros((n, n), np.bool_)
        if problem.num_shards == 1:
            self._leads = reachability(problem.order, problem.succ_indptr, problem.succ)
        # Rows that are relaxed where batches share data must not take more for shared than is.
        self._exact = settings.served and problem.transfers == "blocking"
        self._z: dict[tuple[int, int], dict[tuple[int, int, int], Affine]] = {}
        self._shares: dict[tuple[int, int, int, int], Affine] = {}
        self._precedence: dict[tuple[int, int, int], Affine] = {}
        self.starts_of: dict[tuple[int, int], Affine] = {}
        self._batches = [(v, i) for v in range(problem.num_ops) for i in self.devices_of(v)]
        self.presence = {batch: self.present(*batch) for batch in self._batches}
        self.work = {batch: self.duration(*batch) for batch in self._batches}
        self._starts()
        for i in range(problem.num_devices):
            self._device(i)
        if problem.transfers == "parallel":
            for u, w in problem.edges.tolist():
                self._edge(u, w)
        else:
            self._congestion()
        self.add_loads()

    def _starts(self) -> None:
        """Add head y <= S and S + duration + tail y <= C for each batch (condition 2)."""
        for v, i in self._batches:
            there, head = self.presence[v, i], float(self.head[v, i])
            latest = self.limit - float(self.least[v, i] + self.tail[v, i])
            handle = self.linear.continuous(0.0, max(latest, head))
            self.starts_of[v, i] = Affine({handle: 1.0})
            self.row((there, head), (self.starts_of[v, i], -1.0))
            end = Affine({handle: 1.0, self.makespan: -1.0})
            self.linear.at_most(end.add(self.work[v, i]).add(there, float(self.tail[v, i])), 0.0)

    def _follows(self, v: int, w: int, i: int, j: int, switch: Affine, gap: Affine | None = None) -> None:
        """S[v, i] + duration + gap - M (1 - switch) + head (y - switch) <= S[w, j], with M the latest end of (v, i).

        The switch is at most 1, and at least 0 if y[w, j] does not exceed it otherwise.
        """
        latest = self.limit - float(self.tail[v, i])
        total = Affine(constant=-latest).add(self.starts_of[v, i]).add(self.work[v, i])
        total.add(switch, latest).add(self.starts_of[w, j], -1.0)
        if gap is not None:
            total.add(gap)
        head = float(self.head[w, j])
        total.add(self.presence[w, j], head).add(switch, -head)
        self.linear.at_most(total, 0.0)

    # Sharing of shards.

    def _products(self, u: int, w: int) -> dict[tuple[int, int, int], Affine]:
        """Return z[i, j, l] = x[u, i, l] x[w, j, l] for two ops of different groups; what is left out is 0.

        Sum over j of z = x[u, i, l] and sum over i of z = x[w, j, l] (Moirai's u of equation 7, with the sums that make
        its relaxation tight). Pairs without a link have none.
        """
        key = (int(self.problem.group[u]), int(self.problem.group[w]))
        if key in self._z:
            return self._z[key]
        i_of, j_of = self.devices_of(u), self.devices_of(w)
        z: dict[tuple[int, int, int], Affine] = {}
        for shard in range(self.problem.num_shards):
            sums = {(0, i): Affine().add(self.on(u, i, shard), -1.0) for i in i_of}
            sums |= {(1, j): Affine().add(self.on(w, j, shard), -1.0) for j in j_of}
            for i, j in itertools.product(i_of, j_of):
                first, second = self.on(u, i, shard), self.on(w, j, shard)
                if not np.isfinite(self.problem.delay_s[i, j]):
                    self.row((first, 1.0), (second, 1.0), limit=1.0)
                else:
                    z[i, j, shard] = Affine({self.linear.continuous(0.0, 1.0): 1.0})
                    sums[0, i].add(z[i, j, shard])
                    sums[1, j].add(z[i, j, shard])
            for total in sums.values():
                self.linear.equal(total, 0.0)
        self._z[key] = z
        return z

    def _share(self, u: int, i: int, w: int, j: int) -> Affine:
        """Return a switch that is 1 where batches (u, i) and (w, j) share a shard: at least every z[i, j, l]."""
        if self.problem.group[u] == self.problem.group[w]:
            return self.presence[u, i] if i == j else Affine()
        key = (int(self.problem.group[u]), i, int(self.problem.group[w]), j)
        if key not in self._shares:
            z = self._products(u, w)
            parts = [z[i, j, shard] for shard in range(self.problem.num_shards) if (i, j, shard) in z]
            self._shares[key] = self._any(parts)
        return self._shares[key]

    def _any(self, parts: list[Affine]) -> Affine:
        """Return a variable in [0, 1] that is at least every part, or the part itself where it is one."""
        parts = [part for part in parts if part.coefs or part.constant > 0]
        if any(not part.coefs for part in parts):
            return Affine(constant=1.0)
        distinct = {tuple(part.coefs.items()): part for part in parts}
        if len(distinct) <= 1:
            return next(iter(distinct.values()), Affine())
        handle = self.linear.continuous(0.0, 1.0)
        for part in distinct.values():
            self.row((part, 1.0), (Affine({handle: 1.0}), -1.0))
        if self._exact:
            self.row((Affine({handle: 1.0}), 1.0), *((part, -1.0) for part in distinct.values()))
        return Affine({handle: 1.0})

    def _edge(self, u: int, w: int) -> None:
        """S[u, i] + duration + transfer <= S[w, j] where the batches share a shard (condition 3).

        The transfer moves the shared shards: delay + sum over l of z[i, j, l] bytes(u) s_per_byte(i, j).
        """
        problem = self.problem
        for i, j in itertools.product(self.devices_of(u), self.devices_of(w)):
            switch = self._share(u, i, w, j)
            if not switch.coefs and switch.constant == 0:
                continue
            if not np.isfinite(self.transfer(u, i, j)):
                self.linear.equal(switch, 0.0)  # It takes longer than the limit.
                continue
            gap = None
            if i != j:
                gap = Affine().add(switch, float(problem.delay_s[i, j]) / self.unit)
                rate = float(problem.tensor_bytes[u] * problem.s_per_byte[i, j]) / self.unit
                z = self._products(u, w)
                for shard in range(problem.num_shards):
                    if (i, j, shard) in z:
                        gap.add(z[i, j, shard], rate)
            self._follows(u, w, i, j, switch, gap)

    # Disjunctions on devices (condition 7).

    def _device(self, i: int) -> None:
        for f, g in itertools.combinations([v for v, at in self._batches if at == i], 2):
            self._pair(f, g, i)

    def _may_precede(self, v: int, w: int, i: int) -> bool:
        """Return whether batch (v, i) may run before batch (w, i) within the limit."""
        both = float(self.head[v, i] + self.least[v, i] + self.least[w, i] + self.tail[w, i])
        return both <= self.limit * (1.0 + ROUNDING) and not bool(self._leads[w, v])

    def _pair(self, f: int, g: int, i: int) -> None:
        """o[f, g] + o[g, f] >= y[f] + y[g] - 1; S[f] + duration(f) <= S[g] where o[f, g] = 1, and the converse.

        With one order left, o is y[f] + y[g] - 1, or 0 where that is -1.
        """
        y_f, y_g = self.presence[f, i], self.presence[g, i]
        parallel = self.problem.transfers == "parallel"
        both = Affine(constant=-1.0).add(y_f).add(y_g)
        f_first, g_first = self._may_precede(f, g, i), self._may_precede(g, f, i)
        if not f_first and not g_first:
            self.linear.at_most(both, 0.0)
            self._precedence[f, g, i] = self._precedence[g, f, i] = Affine()
            return
        if not f_first or not g_first:
            first, second = (f, g) if f_first else (g, f)
            self._precedence[first, second, i], self._precedence[second, first, i] = both, Affine()
            self.orders.append((first, i, second, -1, True))
            implied = bool(self._leads[first, second])
            if y_f.coefs and y_g.coefs and not (implied and parallel):
                # The switch must not fall below 0, or its rows would move what is absent.
                handle = self.linear.continuous(0.0, 1.0)
                self.row((both, 1.0), (Affine({handle: 1.0}), -1.0))
                both = self._precedence[first, second, i] = Affine({handle: 1.0})
            if not implied:
                self._follows(first, second, i, i, both)
            return
        forward, backward = self.linear.binary(), self.linear.continuous(0.0, 1.0)
        self.row((both, 1.0), (Affine({forward: 1.0, backward: 1.0}), -1.0))
        self.linear.at_most(Affine({forward: 1.0, backward: 1.0}), 1.0)
        for first, second, handle in ((f, g, forward), (g, f, backward)):
            switch = self._precedence[first, second, i] = Affine({handle: 1.0})
            self.orders.append((first, i, second, forward, handle == forward))
            self._follows(first, second, i, i, switch)

    # Transfers that exclude each other (Moirai equations 7 and 8).

    def _congestion(self) -> None:
        self._transfers()
        for u, w in self.problem.edges.tolist():
            for i, j in itertools.product(self.devices_of(u), self.devices_of(w)):
                switch = self._share(u, i, w, j)
                if switch.coefs or switch.constant > 0:
                    if i == j:
                        self._follows(u, w, i, i, switch)
                    elif not np.isfinite(self.transfer(u, i, j)):
                        self.linear.equal(switch, 0.0)
                    else:
                        self._arrives(u, i, w, j, switch)
        if self.problem.transfers == "exclusive":
            self._links()
        else:
            self._receivers()

    def _transfers(self) -> None:
        """S[v, i] + duration <= R[v, i, j]; the transfer moves the shards that some consumer on j shares.

        ``sends[v, i, j]`` is 1 iff there is one, ``moves[v, i, j]`` its duration, at least what its shards take.
        """
        problem = self.problem
        self.r: dict[tuple[int, int, int], Affine] = {}
        self.sends: dict[tuple[int, int, int], Affine] = {}
        self.moves: dict[tuple[int, int, int], Affine] = {}
        for v, i in self._batches:
            users = [w for w in problem.succ_of(v).tolist() if problem.group[w] != problem.group[v]]
            for j in range(problem.num_devices):
                if j == i:
                    continue
                shards = [
                    self._any([z[i, j, shard] for z in (self._products(v, w) for w in users) if (i, j, shard) in z])
                    for shard in range(problem.num_shards)
                ]
                sends = self._any(shards)
                if not sends.coefs and sends.constant == 0:
                    continue
                if not np.isfinite(self.transfer(v, i, j)):
                    self.linear.equal(sends, 0.0)  # It takes longer than the limit.
                    continue
                rate = float(problem.tensor_bytes[v] * problem.s_per_byte[i, j]) / self.unit
                moves = Affine().add(sends, float(problem.delay_s[i, j]) / self.unit)
                for part in shards:
                    moves.add(part, rate)
                self.sends[v, i, j], self.moves[v, i, j] = sends, moves
                self.r[v, i, j] = Affine({self.linear.continuous(0.0, self.limit): 1.0})
                self.row((self.starts_of[v, i], 1.0), (self.work[v, i], 1.0), (self.r[v, i, j], -1.0))

    def _arrives(self, u: int, i: int, w: int, j: int, switch: Affine) -> None:
        """R[u, i, j] + moves <= S[w, j] where the batches share a shard."""
        head = float(self.head[w, j])
        total = Affine(constant=-self.limit).add(self.r[u, i, j]).add(self.moves[u, i, j]).add(switch, self.limit)
        total.add(self.starts_of[w, j], -1.0).add(self.presence[w, j], head).add(switch, -head)
        self.linear.at_most(total, 0.0)

    def _queue(self, first: tuple[int, int, int], second: tuple[int, int, int], switch: Affine) -> None:
        """R[first] + moves <= R[second] where the switch is 1."""
        total = Affine(constant=-self.limit).add(self.r[first]).add(self.moves[first]).add(switch, self.limit)
        self.linear.at_most(total.add(self.r[second], -1.0), 0.0)

    def _either(self, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
        """Put two transfers one after the other in either order, where there are both."""
        forward, backward = Affine({self.linear.binary(): 1.0}), Affine({self.linear.continuous(0.0, 1.0): 1.0})
        self.row((self.sends[first], 1.0), (self.sends[second], 1.0), (forward, -1.0), (backward, -1.0), limit=1.0)
        self._queue(first, second, forward)
        self._queue(second, first, backward)

    def _links(self) -> None:
        """Transfers on one link (i, j) do not overlap (Moirai equation 8): in the order of their batches, if served.

        A batch that sends nothing over the link takes part with a transfer of no duration at its end.
        """
        by_link: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for v, i, j in self.r:
            by_link.setdefault((i, j), []).append((v, i, j))
        for (i, _), transfers in by_link.items():
            for first, second in itertools.combinations(transfers, 2):
                if not self.settings.served:
                    self._either(first, second)
                    continue
                for a, b in ((first, second), (second, first)):
                    switch = self._precedence[a[0], b[0], i]
                    if switch.coefs or switch.constant > 0:
                        self._queue(a, b, switch)

    def _receivers(self) -> None:
        """Keep device j busy during transfers to it (blocking): computing and receiving do not overlap.

        Served: a transfer is made when the receiver gets to its first user, so after every batch that no user of it
        comes before; batches after a user wait by themselves. Transfers for one user are made in either order.
        """
        for first, second in itertools.combinations(self.r, 2):
            if first[2] == second[2] and (not self.settings.served or self._users(first[0]) & self._users(second[0])):
                self._either(first, second)
        for transfer in self.r:
            for b, i in self._batches:
                if i == transfer[2]:
                    if self.settings.served:
                        self._served(transfer, b)
                    else:
                        self._excluded(transfer, b)

    def _users(self, v: int) -> set[int]:
        return {w for w in self.problem.succ_of(v).tolist() if self.problem.group[w] != self.problem.group[v]}

    def _served(self, transfer: tuple[int, int, int], b: int) -> None:
        """S[b] + duration <= R unless b is a user or runs after one: R + M (1 - y[b]) + M a[b] + M sum of a[w, b].

        a[w, b] <= o[w, b] and a[w, b] <= share(transfer, w), for the users w.
        """
        v, source, j = transfer
        total = Affine(constant=-self.limit).add(self.starts_of[b, j]).add(self.work[b, j])
        total.add(self.presence[b, j], self.limit).add(self.r[transfer], -1.0)
        for w in sorted(self._users(v)):
            if (w, j) not in self.presence:
                continue
            shared = self._share(v, source, w, j)
            if not shared.coefs and shared.constant == 0:
                continue
            if w == b:
                total.add(shared, -self.limit)
                continue
            order = self._precedence[w, b, j]
            after = Affine({self.linear.continuous(0.0, 1.0): 1.0})
            if order.coefs or order.constant > 0:
                self.row((after, 1.0), (order, -1.0))
                self.row((after, 1.0), (shared, -1.0))
                total.add(after, -self.limit)
        self.linear.at_most(total, 0.0)

    def _excluded(self, transfer: tuple[int, int, int], b: int) -> None:
        """R + moves <= S[b] or S[b] + duration <= R, where both exist."""
        j = transfer[2]
        forward, backward = Affine({self.linear.binary(): 1.0}), Affine({self.linear.continuous(0.0, 1.0): 1.0})
        self.row((self.sends[transfer], 1.0), (self.presence[b, j], 1.0), (forward, -1.0), (backward, -1.0), limit=1.0)
        total = Affine(constant=-self.limit).add(self.r[transfer]).add(self.moves[transfer]).add(forward, self.limit)
        self.linear.at_most(total.add(self.starts_of[b, j], -1.0), 0.0)
        total = Affine(constant=-self.limit).add(self.starts_of[b, j]).add(self.work[b, j]).add(backward, self.limit)
        self.linear.at_most(total.add(self.r[transfer], -1.0), 0.0)

    def decode(self, point: FloatArray) -> Placement:
        """Return the placement of a point that satisfies the model up to SCIP's tolerance."""
        device, start = self.device_of(point), np.zeros((self.problem.num_ops, self.problem.num_devices))
        for (v, i), expression in self.starts_of.items():
            start[v, i] = expression.value(point)
        return Placement(device, self.sequence_of(device, start, point))
