"""The part of the placement program without times: devices, sizes of batches, memory, loads, symmetry, and decoding."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from rlinit.arrays import BoolArray, FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.symmetry import Symmetry
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.solvers.linear_model import Affine, LinearModel, power_of_two_unit
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import held_bytes

_LEVELS = (0.0, 0.25, 0.5, 0.75)
"""Quantiles of heads and tails that the load rows start from: 16 rows a device at most."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementMilpSettings:
    """Which formulation to write and how SCIP searches it.

    Parameters
    ----------
    served
        Transfers share links first come, first served, as list scheduling does; False lets them go in any order
        (Moirai equation 8), whose bound holds for both.
    intra_symmetry, inter_symmetry
        Order alike devices of a node, and alike nodes, by their number of batches, of (op, shard) tasks, or by busy
        seconds.
    node_of_device
        (d,) node of each device; None: all devices are in one.
    node_limit
        Most branch-and-bound nodes, for limits that repeat identically; None: no limit.

    Raises
    ------
    ValueError
        A choice that does not exist.
    """

    served: bool = True
    intra_symmetry: Symmetry = "tasks"
    inter_symmetry: Symmetry = "none"
    node_of_device: IntArray | None = None
    node_limit: int | None = None

    def __post_init__(self) -> None:
        for name, options in (
            ("intra_symmetry", ("none", "batches", "tasks", "time")),
            ("inter_symmetry", ("none", "batches", "tasks", "time")),
        ):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {options}, got {getattr(self, name)!r}")


class DeviceModel:
    """Variables and rows of devices and loads.

    ``x[g, i, l]`` is 1 iff shard l of the ops of group g is on device i (DIVIML's x[i, u, l]), ``b[g, i, c]`` iff their
    batch on i has c shards (b[i, u, c]; x itself with one shard), C is the makespan.

    Parameters
    ----------
    problem, windows
        What is placed, and the batches, heads and tails below `limit_s`.
    settings
        The form of the program.
    limit_s
        Seconds, a value that the makespan does not exceed.
    lower_s
        A known lower bound on the makespan.
    budget
        Writing the model raises `OutOfTime` once this has ended.
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
        self.problem = problem
        self.settings = settings
        self.unit = power_of_two_unit(limit_s)
        self.limit = limit_s / self.unit
        self.seconds = problem.time_s / self.unit
        self.sizes = windows.allowed
        self.allowed: BoolArray = np.asarray(windows.allowed.any(axis=2))
        self.head, self.least, self.tail = (
            np.where(self.allowed, values, 0.0) / self.unit
            for values in (windows.head_s, windows.least_s, windows.tail_s)
        )
        self.linear = LinearModel(budget=budget)
        self.makespan = self.linear.continuous(min(lower_s / self.unit, self.limit), self.limit)
        self.linear.objective = self.makespan
        self.x: dict[tuple[int, int, int], int] = {}
        self.b: dict[tuple[int, int, int], int] = {}
        # (v, i, w, handle, value): if both exist, batch (v, i) runs before (w, i) where the handle has that value (-1:
        # always).
        self.orders: list[tuple[int, int, int, int, bool]] = []
        self._devices_of = [np.flatnonzero(row).tolist() for row in self.allowed]
        self._assign()
        if problem.num_shards > 1:
            self._sizes()
        self._memory()

    # Devices and batches.

    def on(self, v: int, i: int, shard: int = 0) -> Affine:
        """Return x[v, i, l]; do not change it.

        Parameters
        ----------
        v, i
            Op and device.
        shard
            l, from 0.
        """
        handle = self.x.get((int(self.problem.group[v]), i, shard))
        return Affine() if handle is None else Affine({handle: 1.0})

    def sized(self, v: int, i: int, weights: FloatArray) -> Affine:
        """Return the sum over c >= 1 of weights[c] b[v, i, c].

        Parameters
        ----------
        v, i
            Op and device.
        weights
            (s + 1,) by number of shards c; that of 0 is not looked at.
        """
        if self.problem.num_shards == 1:
            handle = self.x.get((int(self.problem.group[v]), i, 0))
            return Affine() if handle is None else Affine({handle: float(weights[1])})
        g, total = int(self.problem.group[v]), Affine()
        for c in range(1, self.problem.num_shards + 1):
            if (g, i, c) in self.b:
                total.coefs[self.b[g, i, c]] = float(weights[c])
        return total

    def present(self, v: int, i: int) -> Affine:
        """Return whether batch (v, i) exists.

        Parameters
        ----------
        v, i
            Op and device.
        """
        return self.sized(v, i, np.ones(self.problem.num_shards + 1))

    def duration(self, v: int, i: int) -> Affine:
        """Return the duration of batch (v, i), 0 where there is none.

        Parameters
        ----------
        v, i
            Op and device.
        """
        return self.sized(v, i, self.seconds[v, i])

    def transfer(self, u: int, i: int, j: int) -> float:
        """Return the time of moving one shard of an op's output between two devices, in the model's unit.

        ``inf`` without a link, and where the transfer alone takes longer than the limit: no placement within it has
        such a one. So no coefficient of a row exceeds the limit, and rows stay within what a solver computes with.

        Parameters
        ----------
        u
            Op that makes the tensor.
        i, j
            From device i to device j.
        """
        time = self.problem.transfer_s(u, i, j) / self.unit
        return time if time <= self.limit else np.inf

    def devices_of(self, v: int) -> list[int]:
        """Return the devices that op v may use."""
        return self._devices_of[v]

    def _assign(self) -> None:
        """Sum over i of x[g, i, l] = 1 for each group g and shard l (DIVIML condition 1)."""
        for g in np.flatnonzero(self.problem.group == np.arange(self.problem.num_ops)).tolist():
            for shard in range(self.problem.num_shards):
                total = Affine()
                for i in self._devices_of[g]:
                    handle = self.x[g, i, shard] = self.linear.binary(priority=2)
                    total.coefs[handle] = 1.0
                self.linear.equal(total, 1.0)

    def _sizes(self) -> None:
        """Sum over l of x[g, i, l] = sum over c of c b[g, i, c], sum over c of b[g, i, c] <= 1 (conditions 4 and 5).

        Together with condition 1 they give condition 4; a size that some op of the group may not have has no b.
        """
        s = self.problem.num_shards
        for g in sorted({g for g, _, _ in self.x}):
            for i in self._devices_of[g]:
                total = Affine({self.x[g, i, shard]: 1.0 for shard in range(s)})
                one = Affine()
                for c in np.flatnonzero(self.sizes[g, i]):
                    handle = self.b[g, i, int(c)] = self.linear.binary(priority=1)
                    total.coefs[handle] = -float(c)
                    one.coefs[handle] = 1.0
                self.linear.equal(total, 0.0)
                self.linear.at_most(one, 1.0)
                for shard in range(s):
                    self.linear.at_most(Affine({self.x[g, i, shard]: 1.0}).add(one, -1.0), 0.0)

    def _memory(self) -> None:
        """Sum over v of weight(v) y[v, i] + c shard(v) b[v, i, c] <= capacity(i) (DIVIML condition 6, Moirai 5)."""
        problem = self.problem
        sizes = np.arange(problem.num_shards + 1, dtype=np.float64)
        for i in np.flatnonzero(np.isfinite(problem.capacity_bytes)).tolist():
            capacity = float(problem.capacity_bytes[i]) * CAPACITY_SLACK
            scale = power_of_two_unit(capacity)
            held = Affine()
            for v in range(problem.num_ops):
                if self.allowed[v, i] and problem.weight_bytes[v] + problem.shard_bytes[v] > 0:
                    weights = (problem.weight_bytes[v] + sizes * problem.shard_bytes[v]) / scale
                    held.add(self.sized(v, i, weights))
            if self.linear.largest_value(held) > capacity / scale:
                self.linear.at_most(held, capacity / scale)

    # Time.

    def row(self, *terms: tuple[Affine, float], limit: float = 0.0) -> None:
        """Add "sum of factor * expression <= limit".

        Parameters
        ----------
        terms
            (expression, factor) each.
        limit
            Right side, in the model's unit.
        """
        total = Affine()
        for expression, factor in terms:
            total.add(expression, factor)
        self.linear.at_most(total, limit)

    def add_loads(self) -> None:
        """Add h u + sum of the durations of some batches + q <= C on each device, for those of head >= h, tail >= q.

        u is 1 if there is such a batch at all: they run one after another, none before h, and at least q comes after
        the last one. The levels h and q are quantiles over the batches of the device.
        """
        for i in range(self.problem.num_devices):
            ops = np.flatnonzero(self.allowed[:, i])
            if len(ops) < 2:
                continue
            heads, tails = (np.quantile(key, _LEVELS).tolist() for key in (self.head[ops, i], self.tail[ops, i]))
            seen = set()
            for h, q in itertools.product(heads, tails):
                chosen = ops[(self.head[ops, i] >= h) & (self.tail[ops, i] >= q)]
                if chosen.tobytes() not in seen:
                    seen.add(chosen.tobytes())
                    self._load(i, chosen)

    def _load(self, i: int, ops: IntArray) -> None:
        if len(ops) < 2:
            return
        present = [self.present(v, i) for v in ops.tolist()]
        total = Affine({self.makespan: -1.0})
        for v in ops.tolist():
            total.add(self.duration(v, i))
        ends = float(self.head[ops, i].min() + self.tail[ops, i].min())
        if ends > 0:
            used = self.linear.continuous(0.0, 1.0)
            for p in present:
                self.row((p, 1.0), (Affine({used: 1.0}), -1.0))
            total.coefs[used] = ends
        self.linear.at_most(total, 0.0)

    # Symmetry.

    def metric(self, devices: list[int], by: Symmetry) -> Affine:
        """Return the batches, tasks or busy seconds of some devices together.

        Parameters
        ----------
        devices
            Devices.
        by
            ``batches``, ``tasks`` or ``time``.
        """
        total = Affine()
        sizes = np.arange(self.problem.num_shards + 1, dtype=np.float64)
        for i in devices:
            for v in np.flatnonzero(self.allowed[:, i]).tolist():
                if by == "time":
                    total.add(self.duration(v, i))
                else:
                    total.add(self.sized(v, i, sizes) if by == "tasks" else self.present(v, i))
        return total

    def order_devices(self, classes: list[list[list[int]]], by: Symmetry) -> None:
        """metric(first) >= metric(second) >= ... within each class of interchangeable groups of devices.

        Parameters
        ----------
        classes
            Classes of groups of devices that may be exchanged.
        by
            ``batches``, ``tasks`` or ``time``.
        """
        if by != "none":
            for members in classes:
                metrics = [self.metric(group, by) for group in members]
                for first, second in itertools.pairwise(metrics):
                    self.row((second, 1.0), (first, -1.0))

    def order_shards(self) -> None:
        """Sum over i of i x[g, i, l] <= sum over i of i x[g, i, l + 1] for the group g of the first op."""
        g = int(self.problem.group[self.problem.order[0]])
        for shard in range(self.problem.num_shards - 1):
            first = Affine({self.x[g, i, shard]: float(i) for i in self._devices_of[g]})
            second = Affine({self.x[g, i, shard + 1]: float(i) for i in self._devices_of[g]})
            self.row((first, 1.0), (second, -1.0))

    # Points and placements.

    def device_of(self, point: FloatArray) -> IntArray:
        """Return the (n, s) devices of a point."""
        device = np.zeros((self.problem.num_ops, self.problem.num_shards), np.int64)
        for (g, i, shard), handle in self.x.items():
            if point[handle] > 0.5:
                device[g, shard] = i
        return device[self.problem.group]

    def sequence_of(self, device: IntArray, start: FloatArray, point: FloatArray) -> IntArray:
        """Return the batches of `device` by (n, d) `start`, under data and, as far as it can be, the point's orders.

        A point satisfies its rows only up to a tolerance, so starts alone may put a batch of no duration on the wrong
        side of a long one.

        Parameters
        ----------
        device
            (n, s) device of each shard.
        start
            (n, d) starts of batches, in the model's unit.
        point
            (number of variables,) values of a solution.
        """
        d = self.problem.num_devices
        masks = np.zeros((self.problem.num_ops, d), np.int64)
        for shard in range(device.shape[1]):
            masks[np.arange(len(device)), device[:, shard]] |= 1 << shard
        after: dict[int, list[tuple[int, bool]]] = {int(code): [] for code in np.flatnonzero(masks.ravel())}
        data = dict.fromkeys(after, 0)
        soft = dict.fromkeys(after, 0)
        for u, w in self.problem.edges.tolist():
            for first in {u * d + int(j) for j in device[u]}:
                for second in {w * d + int(j) for j in device[w]}:
                    if masks[u, first % d] & masks[w, second % d]:
                        after[first].append((second, True))
                        data[second] += 1
        for v, i, w, handle, value in self.orders:
            first, second = v * d + i, w * d + i
            if first in after and second in after and (handle < 0 or (point[handle] > 0.5) == value):
                after[first].append((second, False))
                soft[second] += 1
        rank = inverse_of(self.problem.order)
        keys = {code: (float(start[code // d, code % d]), int(rank[code // d]), code) for code in after}
        ready = [keys[code] for code in after if not data[code] and not soft[code]]
        heapq.heapify(ready)
        sequence: list[int] = []
        left = dict.fromkeys(after)
        while left:
            code = heapq.heappop(ready)[2] if ready else _least_blocked(left, after, data, keys)
            if code not in left:
                continue
            del left[code]
            sequence.append(code)
            for other, is_data in after[code]:
                if is_data:
                    data[other] -= 1
                else:
                    soft[other] -= 1
                if other in left and not data[other] and not soft[other]:
                    heapq.heappush(ready, keys[other])
        return np.array(sequence, np.int64)

    def forbid_overload(self, device: IntArray) -> bool:
        """Rule out what overloads a device in `device` ((n, s)); return whether anything does.

        Sum of the b (x with one shard) of the overloaded device that are 1 <= their number - 1. A solver takes a sum
        that exceeds the capacity by its tolerance for one that does not.
        """
        held = held_bytes(self.problem, device)
        over = np.flatnonzero(held > self.problem.capacity_bytes * CAPACITY_SLACK).tolist()
        for i in over:
            if self.problem.num_shards == 1:
                chosen = [handle for (g, at, _), handle in self.x.items() if at == i and device[g, 0] == i]
            else:
                chosen = [b for (g, at, c), b in self.b.items() if at == i and (device[g] == i).sum() == c]
            self.linear.at_most(Affine(dict.fromkeys(chosen, 1.0)), len(chosen) - 1.0)
        return bool(over)


def _least_blocked(
    left: dict[int, None],
    after: dict[int, list[tuple[int, bool]]],
    data: dict[int, int],
    keys: dict[int, tuple[float, int, int]],
) -> int:
    """Return the first batch of a cycle of orders that waits for nothing outside of it, and for no data.

    Batches on a cycle take no more time together than the solver's tolerance, so that one of its orders may be dropped,
    but none that lead from it to others.
    """
    place = {code: at for at, code in enumerate(left)}
    arcs = [(place[u], place[v]) for u in left for v, _ in after[u] if v in place]
    rows, columns = np.array(arcs, np.int64).reshape(-1, 2).T
    graph = scipy.sparse.csr_matrix((np.ones(len(arcs)), (rows, columns)), shape=(len(left), len(left)))
    _, label = scipy.sparse.csgraph.connected_components(graph, directed=True, connection="strong")
    blocked = {int(label[v]) for u, v in arcs if label[u] != label[v]}
    return min(keys[code] for code in left if not data[code] and int(label[place[code]]) not in blocked)[2]
