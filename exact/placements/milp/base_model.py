"""What the placement programs share: devices, batch sizes, memory, loads, symmetry, and the way back to a placement."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.symmetry import Symmetry
from rlinit.exact.placements.analysis.time_windows import BatchWindows
from rlinit.exact.solvers.linear_model import Affine, LinearModel, power_of_two_unit
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes

_LEVELS = (0.0, 0.25, 0.5, 0.75)
"""Quantiles of heads and tails that the load rows start from: 16 rows a device at most."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementMilpSettings:
    """Which formulation to write and how SCIP searches it.

    Parameters
    ----------
    variables
        ``ops``: one start for each op (``latency`` with parallel transfers only); ``batches``: one for each op and
        device, as DIVIML's s[i, u]; ``auto``: the first where it applies.
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

    variables: Literal["auto", "ops", "batches"] = "auto"
    served: bool = True
    intra_symmetry: Symmetry = "tasks"
    inter_symmetry: Symmetry = "none"
    node_of_device: IntArray | None = None
    node_limit: int | None = None

    def __post_init__(self) -> None:
        for name, options in (
            ("variables", ("auto", "ops", "batches")),
            ("intra_symmetry", ("none", "batches", "tasks", "time")),
            ("inter_symmetry", ("none", "batches", "tasks", "time")),
        ):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {options}, got {getattr(self, name)!r}")


class PlacementModel:
    """Variables and rows of both programs.

    ``x[g, i, l]`` is 1 iff shard l of the ops of group g is on device i (DIVIML's x[i, u, l]), ``b[g, i, c]`` iff their
    batch on i has c shards (b[i, u, c]; x itself with one shard), C is the makespan. Pinned ops have constants.

    Parameters
    ----------
    windows
        Not empty.
    unit
        Seconds that the model counts as 1.
    lower_s
        A known lower bound on the makespan.
    budget
        Writing the model raises `OutOfTime` once this has ended.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        windows: BatchWindows,
        settings: PlacementMilpSettings,
        *,
        unit: float,
        lower_s: float,
        budget: Budget,
    ) -> None:
        self.problem = problem
        self.windows = windows
        self.settings = settings
        self.unit = unit
        self.limit = windows.limit_s / unit
        self.seconds = problem.time_s / unit
        self.head, self.least, self.rest = windows.head_s / unit, windows.least_s / unit, windows.rest_s / unit
        # The tail is what is added to the shortest duration to give the rest, rounding included.
        self.tail = self.rest - self.least
        self.linear = LinearModel(budget=budget)
        self.makespan = self.linear.continuous(min(lower_s / unit, self.limit), self.limit)
        self.linear.objective = self.makespan
        self.x: dict[tuple[int, int, int], int] = {}
        self.b: dict[tuple[int, int, int], int] = {}
        # (v, i, w, handle, value): if both exist, batch (v, i) runs before (w, i) where the handle has that value (-1:
        # always).
        self.orders: list[tuple[int, int, int, int, bool]] = []
        # (handle, device, ops) of the indicators made by `add_loads`.
        self.loads: list[tuple[int, int, IntArray]] = []
        self._devices_of = [np.flatnonzero(row).tolist() for row in windows.allowed]
        self._assign()
        if problem.num_shards > 1:
            self._sizes()
        self._memory()
        self.write()

    def write(self) -> None:
        """Add what the program has beside devices, sizes of batches and memory.

        Raises
        ------
        NotImplementedError
            Here: it is for the two programs.
        """
        raise NotImplementedError

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
        if self.windows.pinned[v]:
            return Affine(constant=float(int(self.windows.mask[v, i]) >> shard & 1))
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
        mask = int(self.windows.mask[v, i])
        if self.windows.pinned[v]:
            return Affine(constant=float(weights[mask.bit_count()]) if mask else 0.0)
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

        ``inf`` without a link, and where the transfer alone takes longer than the limit: no placement of the window has
        it. So no coefficient of a row exceeds the limit, and rows stay within what a solver computes with.

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
        """Sum over i of x[g, i, l] = 1 for each open group g and shard l (DIVIML condition 1)."""
        for g in np.flatnonzero(
            (self.problem.group == np.arange(self.problem.num_ops)) & ~self.windows.pinned
        ).tolist():
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
        problem, s = self.problem, self.problem.num_shards
        for g in sorted({g for g, _, _ in self.x}):
            members = np.flatnonzero(problem.group == g)
            for i in self._devices_of[g]:
                # None that takes longer than the limit by itself is there.
                able = (self.seconds[members, i] <= self.limit).all(axis=0)
                total = Affine({self.x[g, i, shard]: 1.0 for shard in range(s)})
                one = Affine()
                for c in np.flatnonzero(able[1:]) + 1:
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
                if self.windows.allowed[v, i] and problem.weight_bytes[v] + problem.shard_bytes[v] > 0:
                    weights = (problem.weight_bytes[v] + sizes * problem.shard_bytes[v]) / scale
                    held.add(self.sized(v, i, weights))
            if self.linear.largest_value(held) > capacity / scale:
                self.linear.at_most(held, capacity / scale)

    # Time.

    def fixed_start(self, v: int, i: int) -> Affine | None:
        """Return the start of a batch that the windows settle (its head, or C less its time and tail), or None.

        Parameters
        ----------
        v, i
            Op and device.
        """
        if self.windows.early[v, i]:
            return Affine(constant=float(self.head[v, i]))
        if self.windows.late[v, i]:
            return Affine({self.makespan: 1.0}, -float(self.rest[v, i]))
        return None

    def floor_of_settled(self) -> None:
        """Add head + time + tail <= C for each settled batch: one that ends late starts after its head."""
        settled = self.windows.early | self.windows.late
        if settled.any():
            floor = float((self.head + self.rest)[settled].max())
            self.linear.lower[self.makespan] = max(self.linear.lower[self.makespan], min(floor, self.limit))

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
        the last one. The levels h and q are quantiles over the batches that the windows leave open.
        """
        windows = self.windows
        for i in range(self.problem.num_devices):
            ops = np.flatnonzero(windows.allowed[:, i] & ~windows.early[:, i] & ~windows.late[:, i])
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
            if any(not p.coefs and p.constant > 0.5 for p in present):
                total.constant += ends
            else:
                used = self.linear.continuous(0.0, 1.0)
                for p in present:
                    self.row((p, 1.0), (Affine({used: 1.0}), -1.0))
                total.coefs[used] = ends
                self.loads.append((used, i, ops))
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
            for v in np.flatnonzero(self.windows.allowed[:, i]).tolist():
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
        problem = self.problem
        n, s = problem.num_ops, problem.num_shards
        device = np.zeros((n, s), np.int64)
        for v in np.flatnonzero(self.windows.pinned).tolist():
            for shard in range(s):
                holders = (self.windows.mask[v] >> shard) & 1
                device[v, shard] = int(holders.argmax())
        for (g, i, shard), handle in self.x.items():
            if point[handle] > 0.5:
                device[g, shard] = i
        device[~self.windows.pinned] = device[problem.group[~self.windows.pinned]]
        return device

    def encode_devices(self, device: IntArray, point: FloatArray) -> None:
        """Set x, b and the indicators of the loads for (n, s) devices.

        Parameters
        ----------
        device
            (n, s) device of each shard.
        point
            (number of variables,) is filled in place.
        """
        for (g, i, shard), handle in self.x.items():
            point[handle] = device[g, shard] == i
        for (g, i, c), handle in self.b.items():
            point[handle] = (device[g] == i).sum() == c
        for used, i, ops in self.loads:
            point[used] = (device[ops] == i).any()

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

    def late_starts(self, start: FloatArray, makespan: float) -> None:
        """Fill in the (n, d) starts of early and late batches in place, in the model's unit.

        Parameters
        ----------
        start
            (n, d) starts; of the batches in the window they are there.
        makespan
            In the model's unit.
        """
        early, late = self.windows.early, self.windows.late
        start[early] = self.head[early]
        start[late] = makespan - self.rest[late]

    def decode(self, point: FloatArray) -> Placement:
        """Return the placement of a point that satisfies the model up to SCIP's tolerance."""
        device = self.device_of(point)
        start = self.starts(device, point)
        return Placement(device, self.sequence_of(device, start, point))

    def starts(self, device: IntArray, point: FloatArray) -> FloatArray:
        """Return the (n, d) starts of a point.

        Parameters
        ----------
        device
            (n, s) device of each shard.
        point
            (number of variables,) values of a solution.

        Raises
        ------
        NotImplementedError
            This class alone does not say what starts are; its programs do.
        """
        raise NotImplementedError

    def encode(self, placement: Placement) -> FloatArray | None:
        """Return the point of a placement inside the windows, or None where the program takes none.

        Raises
        ------
        NotImplementedError
            This class alone does not say what starts are; its programs do.
        """
        raise NotImplementedError

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
