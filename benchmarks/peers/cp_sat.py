"""Placement problems on CP-SAT (OR-Tools): optional intervals, no overlap on a device, delays under conditions.

Times become integers: durations are rounded up to a unit of some 2^-24 of a makespan known to be reached. A schedule
of the rounded times is one of the true times, whose makespan is computed anew. A best schedule of the true times
takes at most one unit more for each batch and transfer on its longest path once they are rounded up, so the bound
is the one of CP-SAT less that many units. Nothing is lost where the times are multiples of the unit.

The unit is that coarse on purpose: with coefficients of 2^34 and more the presolve of OR-Tools 9.15 calls schedules
optimal that are not (without presolve it does not). Memory is coarse alike, and rounded so that no allowed placement is
lost; a placement that turns out not to fit is forbidden by its own row, and the search goes on.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import PeerResult, Status, horizon_s, judged, require_parallel
from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import repeated
from rlinit.errors import BackendUnavailable, SolverFailure
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["solve_cp_sat"]

_LOOK_S = 0.05
"""Wall-clock seconds between looks at the processor time."""

_TIME_BITS = 24
_BYTE_BITS = 24


def solve_cp_sat(
    problem: PlacementProblem,
    *,
    time_limit_s: float,
    processor_s: float = math.inf,
    workers: int = 2,
    seed: int = 0,
    hint: Placement | None = None,
) -> PeerResult:
    """Solve a placement problem with parallel transfers on CP-SAT.

    Parameters
    ----------
    problem
        ``latency`` or ``throughput``.
    time_limit_s
        Wall-clock limit of the search; building the model comes on top.
    processor_s
        Limit of the processor time of the search, all workers together.
    workers, seed
        Search threads, and their random seed.
    hint
        A placement to start from, which also bounds the times; all ops on one device where that is better.

    Raises
    ------
    BackendUnavailable
        OR-Tools is not installed.
    RlinitError
        The transfers are not ``parallel``.
    SolverFailure
        CP-SAT calls the model invalid.
    """
    require_parallel(problem, "CP-SAT")
    try:
        from ortools.sat.python import cp_model
    except ImportError as problem_of_import:
        raise BackendUnavailable("CP-SAT is not installed; pip install rlinit[cp]") from problem_of_import
    began = time.perf_counter()
    start = _best_start(problem, hint)
    grid = _Grid.of(problem, start)
    model = _LatencyModel(problem, grid) if problem.num_shards == 1 else _ThroughputModel(problem, grid)
    model.build()
    if start is not None:
        model.add_hint(start)
    built = time.perf_counter()
    known: dict[Any, Status] = {
        cp_model.OPTIMAL: "optimal",
        cp_model.FEASIBLE: "feasible",
        cp_model.INFEASIBLE: "infeasible",
        cp_model.UNKNOWN: "no_solution",
    }
    bound_s, processor_end = 0.0, time.process_time() + processor_s
    while True:
        solver = cp_model.CpSolver()
        if math.isfinite(time_limit_s):
            solver.parameters.max_time_in_seconds = max(0.0, time_limit_s - (time.perf_counter() - built))
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed

        def look(searching: cp_model.CpSolver = solver) -> None:
            if time.process_time() > processor_end:
                searching.stop_search()

        with repeated(look, _LOOK_S):
            outcome = solver.solve(model.cp)
        seconds = time.perf_counter() - began
        if outcome not in known:
            raise SolverFailure(f"CP-SAT ended with {solver.status_name(outcome)}: {model.cp.validate()}")
        status = known[outcome]
        if status == "infeasible":
            return judged(problem, None, None, math.inf, status, seconds)
        bound_s = max(bound_s, (solver.best_objective_bound - grid.slack) * grid.unit_s)
        if status == "no_solution":
            return judged(problem, None, None, bound_s, status, seconds)
        device, start_s = model.schedule(solver)
        over = seconds > time_limit_s or time.process_time() > processor_end
        if not model.forbid_overfull(device) or over:
            return judged(problem, device, start_s, bound_s, status, seconds)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Integer times.

    Parameters
    ----------
    unit_s
        Seconds of one step, a power of two, so that dividing by it is exact.
    horizon
        Steps that a best schedule of the rounded times does not exceed.
    slack
        Steps that rounding adds at most to the makespan of a best schedule.
    """

    unit_s: float
    horizon: int
    slack: int

    @classmethod
    def of(cls, problem: PlacementProblem, start: Placement | None) -> _Grid:
        """Return the grid for times up to the makespan of a feasible placement, or up to the horizon."""
        reached = horizon_s(problem)
        if start is not None:
            reached = min(reached, makespan(problem, start))
        unit_s = 2.0 ** (math.floor(math.log2(reached)) - _TIME_BITS) if reached > 0 else 1.0
        slack = _rounded(problem, unit_s)
        return cls(unit_s, math.ceil(reached / unit_s) + slack + 1, slack)

    def steps(self, seconds: float) -> int:
        """Return seconds in steps, rounded up; whatever exceeds the horizon (it can be 10^20 times that) alike."""
        steps = seconds / self.unit_s
        return self.horizon + 1 if steps > self.horizon else math.ceil(steps)


def _best_start(problem: PlacementProblem, hint: Placement | None) -> Placement | None:
    """Return the better one of the hint and of all on one device; None if none of them is feasible."""
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    starts = [Placement(np.full((n, s), i, np.int64), problem.order * d + i) for i in range(d)]
    starts += [] if hint is None else [hint]
    best = min(starts, key=lambda start: makespan(problem, start))
    return best if math.isfinite(makespan(problem, best)) else None


def _rounded(problem: PlacementProblem, unit_s: float) -> int:
    """Return how many batches and transfers that rounding makes longer a path may have, each by less than a step."""
    batches = problem.num_ops * min(problem.num_shards, problem.num_devices)
    batch_s = problem.time_s[:, :, 1:]
    time_s = batch_s[np.isfinite(batch_s)] / unit_s
    linked = np.isfinite(problem.delay_s)
    delay = problem.delay_s[linked] / unit_s
    byte_s = np.outer(problem.tensor_bytes, problem.s_per_byte[linked]) / unit_s
    slack = batches if (time_s % 1 != 0).any() else 0
    if (delay % 1 != 0).any() or (byte_s % 1 != 0).any():
        # The delay and the seconds of each shard are rounded one by one.
        slack += (batches - 1) * (1 + problem.num_shards if problem.num_shards > 1 else 1)
    return slack


@dataclass(slots=True)
class _Model:
    """What both models share: shards on devices, groups, memory, the makespan."""

    problem: PlacementProblem
    grid: _Grid
    cp: cp_model.CpModel = field(init=False)
    end: Any = field(init=False)
    on: dict[tuple[int, int, int], Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        from ortools.sat.python import cp_model

        self.cp = cp_model.CpModel()
        self.end = self.cp.new_int_var(0, self.grid.horizon, "makespan")
        self.cp.minimize(self.end)

    def build(self) -> None:
        """Write the model."""
        raise NotImplementedError

    def lag(self, u: int, i: int, j: int, shards: int = 1) -> int:
        """Return the steps to move shards of u from device i to j."""
        problem = self.problem
        if i == j:
            return 0
        if problem.num_shards == 1:
            return self.grid.steps(problem.transfer_s(u, i, j))
        each = self.grid.steps(float(problem.tensor_bytes[u] * problem.s_per_byte[i, j]))
        return self.grid.steps(float(problem.delay_s[i, j])) + shards * each

    def first_starts(self, placement: Placement) -> dict[tuple[int, int], int]:
        """Return the earliest start in steps of each batch of a placement, as `timeline` does in seconds."""
        problem, device = self.problem, placement.device
        free = [0] * problem.num_devices
        start: dict[tuple[int, int], int] = {}
        stop: dict[tuple[int, int], int] = {}
        for w, j in (divmod(int(batch), problem.num_devices) for batch in placement.sequence):
            begin = free[j]
            for u in problem.pred[problem.pred_indptr[w] : problem.pred_indptr[w + 1]].tolist():
                for i in set(device[u, device[w] == j].tolist()):
                    shared = int(((device[u] == i) & (device[w] == j)).sum())
                    begin = max(begin, stop[u, i] + self.lag(u, i, j, shared))
            count = int((device[w] == j).sum())
            start[w, j] = begin
            stop[w, j] = free[j] = begin + self.grid.steps(float(problem.time_s[w, j, count]))
        return start

    def add_devices(self) -> None:
        """Make ``on[v, l, i]``, shard l of v on device i: one device each, the same one for a group (DIVIML 1)."""
        problem = self.problem
        n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
        able: NDArray[np.bool_] = np.isfinite(problem.time_s[:, :, 1:]).max(axis=2)
        for v in range(n):
            able[problem.group[v]] &= able[v]
        for v in range(n):
            leader = int(problem.group[v])
            for shard in range(s):
                for i in np.flatnonzero(able[leader]).tolist():
                    fresh = v == leader or (leader, shard, i) not in self.on
                    self.on[v, shard, i] = (
                        self.cp.new_bool_var(f"on_{v}_{shard}_{i}") if fresh else self.on[leader, shard, i]
                    )
                if v == leader:
                    self.cp.add_exactly_one(self.on[v, shard, i] for i in range(d) if (v, shard, i) in self.on)

    def add_memory(self, terms: list[tuple[int, Any, float]]) -> None:
        """Require, for each device, the sum of (device, literal, bytes) to fit (DIVIML 6).

        Sizes are rounded down to 2^-24 of the memory: the model leaves out no placement that is allowed.
        """
        for i, capacity in enumerate(self.problem.capacity_bytes.tolist()):
            own = [(literal, size) for device, literal, size in terms if device == i and size > 0]
            for literal in (literal for literal, size in own if size > capacity * CAPACITY_SLACK):
                self.cp.add_bool_and(literal.negated())
            own = [(literal, size) for literal, size in own if size <= capacity * CAPACITY_SLACK]
            if sum(size for _, size in own) <= capacity:
                continue
            unit = 2.0 ** (math.floor(math.log2(capacity)) - _BYTE_BITS)
            steps = [math.floor(size / unit) for _, size in own]
            room = math.floor(capacity * CAPACITY_SLACK / unit)
            self.cp.add(sum(step * literal for step, (literal, _) in zip(steps, own, strict=True)) <= room)

    def forbid_overfull(self, device: IntArray) -> bool:
        """Forbid that all shards of a device that holds too much are on it again; tell whether there is such one."""
        full = np.flatnonzero(held_bytes(self.problem, device) > self.problem.capacity_bytes * CAPACITY_SLACK)
        for i in full.tolist():
            self.cp.add_bool_or(self.on[v, shard, i].negated() for v, shard in np.argwhere(device == i).tolist())
        return len(full) > 0

    def add_load(self, loads: dict[int, list[Any]]) -> None:
        """Require that no device works longer than the makespan (implied, but not in the linear relaxation)."""
        for terms in loads.values():
            if terms:
                self.cp.add(sum(terms) <= self.end)

    def add_hint(self, hint: Placement) -> None:
        """Suggest a placement and its times."""
        raise NotImplementedError

    def hint_devices(self, hint: Placement) -> None:
        """Suggest the hint's devices, once for every literal."""
        done: set[int] = set()
        for (v, shard, i), literal in self.on.items():
            if literal.index not in done:
                done.add(literal.index)
                self.cp.add_hint(literal, bool(hint.device[v, shard] == i))

    def devices(self, solver: cp_model.CpSolver) -> IntArray:
        """Return the (n, s) devices of the solution."""
        device = np.zeros((self.problem.num_ops, self.problem.num_shards), np.int64)
        for (v, shard, i), literal in self.on.items():
            if solver.boolean_value(literal):
                device[v, shard] = i
        return device

    def schedule(self, solver: cp_model.CpSolver) -> tuple[IntArray, FloatArray]:
        """Return devices and starts."""
        raise NotImplementedError


@dataclass(slots=True)
class _LatencyModel(_Model):
    """One batch an op: one start and one end, whichever device."""

    start: list[Any] = field(init=False, default_factory=list)
    stop: list[Any] = field(init=False, default_factory=list)

    def build(self) -> None:
        """Write the model."""
        self.add_devices()
        self._add_ops()
        for u, w in self.problem.edges.tolist():
            self._add_edge(u, w)
        held = self.problem.weight_bytes + self.problem.shard_bytes
        self.add_memory([(i, literal, float(held[v])) for (v, _, i), literal in self.on.items()])

    def _add_ops(self) -> None:
        """Let ``stop[v] = start[v] + time on its device``, and ops on one device not overlap (DIVIML 2, 7)."""
        problem, grid = self.problem, self.grid
        intervals: dict[int, list[Any]] = {i: [] for i in range(problem.num_devices)}
        loads: dict[int, list[Any]] = {i: [] for i in range(problem.num_devices)}
        sinks = np.diff(problem.succ_indptr) == 0
        for v in range(problem.num_ops):
            begin = self.cp.new_int_var(0, grid.horizon, f"start_{v}")
            finish = self.cp.new_int_var(0, grid.horizon, f"stop_{v}")
            spent = []
            for i in range(problem.num_devices):
                if (v, 0, i) in self.on:
                    steps, literal = grid.steps(float(problem.time_s[v, i, 1])), self.on[v, 0, i]
                    spent.append(steps * literal)
                    intervals[i].append(
                        self.cp.new_optional_fixed_size_interval_var(begin, steps, literal, f"run_{v}_{i}")
                    )
                    loads[i].append(steps * literal)
            self.cp.add(finish == begin + sum(spent))
            if sinks[v]:
                self.cp.add(finish <= self.end)
            self.start.append(begin)
            self.stop.append(finish)
        for own in intervals.values():
            self.cp.add_no_overlap(own)
        self.add_load(loads)

    def _add_edge(self, u: int, w: int) -> None:
        """Let w on device j start after u's end and the transfer from wherever u is (DIVIML 3)."""
        self.cp.add(self.start[w] >= self.stop[u])
        for j in range(self.problem.num_devices):
            if (w, 0, j) not in self.on:
                continue
            delays = []
            for i in range(self.problem.num_devices):
                steps = self.lag(u, i, j)
                if (u, 0, i) not in self.on or steps == 0:
                    continue
                if steps > self.grid.horizon:
                    self.cp.add_bool_or(self.on[u, 0, i].negated(), self.on[w, 0, j].negated())
                else:
                    delays.append(steps * self.on[u, 0, i])
            if delays:
                later = self.cp.add(self.start[w] >= self.stop[u] + sum(delays))
                later.only_enforce_if(self.on[w, 0, j])

    def add_hint(self, hint: Placement) -> None:
        """Suggest a placement and its times."""
        self.hint_devices(hint)
        for (v, i), steps in self.first_starts(hint).items():
            self.cp.add_hint(self.start[v], steps)
            self.cp.add_hint(self.stop[v], steps + self.grid.steps(float(self.problem.time_s[v, i, 1])))

    def schedule(self, solver: cp_model.CpSolver) -> tuple[IntArray, FloatArray]:
        """Return devices and starts."""
        device = self.devices(solver)
        start_s = np.full((self.problem.num_ops, self.problem.num_devices), np.nan)
        for v in range(self.problem.num_ops):
            start_s[v, device[v, 0]] = solver.value(self.start[v]) * self.grid.unit_s
        return device, start_s


@dataclass(slots=True)
class _ThroughputModel(_Model):
    """A batch for each op and device, of any number of shards."""

    size: dict[tuple[int, int], list[Any]] = field(init=False, default_factory=dict)
    start: dict[tuple[int, int], Any] = field(init=False, default_factory=dict)
    stop: dict[tuple[int, int], Any] = field(init=False, default_factory=dict)

    def build(self) -> None:
        """Write the model."""
        problem = self.problem
        self.add_devices()
        self._add_shard_order()
        self._add_batches()
        for u, w in problem.edges.tolist():
            for i in range(problem.num_devices):
                for j in range(problem.num_devices):
                    if (u, i) in self.size and (w, j) in self.size:
                        self._add_edge(u, i, w, j)
        terms = [(i, literal, float(problem.shard_bytes[v])) for (v, _, i), literal in self.on.items()]
        terms += [(i, sizes[0].negated(), float(problem.weight_bytes[v])) for (v, i), sizes in self.size.items()]
        self.add_memory(terms)

    def _add_shard_order(self) -> None:
        """Let the device of the first op not decrease from shard to shard: they are alike."""
        first = int(self.problem.order[0])
        for shard in range(self.problem.num_shards - 1):
            here, next_ = (
                sum(i * self.on[first, at, i] for i in range(self.problem.num_devices) if (first, at, i) in self.on)
                for at in (shard, shard + 1)
            )
            self.cp.add(here <= next_)

    def _add_batches(self) -> None:
        """Count the shards of each batch, and let batches on one device not overlap (DIVIML 2, 4, 5, 7)."""
        problem, grid, s = self.problem, self.grid, self.problem.num_shards
        intervals: dict[int, list[Any]] = {i: [] for i in range(problem.num_devices)}
        loads: dict[int, list[Any]] = {i: [] for i in range(problem.num_devices)}
        for v, _, i in [key for key in self.on if key[1] == 0]:
            sizes = [self.cp.new_bool_var(f"size_{v}_{i}_{c}") for c in range(s + 1)]
            self.cp.add_exactly_one(sizes)
            self.cp.add(sum(self.on[v, shard, i] for shard in range(s)) == sum(c * sizes[c] for c in range(1, s + 1)))
            begin = self.cp.new_int_var(0, grid.horizon, f"start_{v}_{i}")
            finish = self.cp.new_int_var(0, grid.horizon, f"stop_{v}_{i}")
            spent = []
            for c in range(1, s + 1):
                seconds = float(problem.time_s[v, i, c])
                if math.isinf(seconds):
                    self.cp.add(sizes[c] == 0)
                    continue
                steps = grid.steps(seconds)
                spent.append(steps * sizes[c])
                intervals[i].append(
                    self.cp.new_optional_fixed_size_interval_var(begin, steps, sizes[c], f"run_{v}_{i}_{c}")
                )
            for shard in range(s):
                self.cp.add_implication(self.on[v, shard, i], sizes[0].negated())
            self.cp.add(finish == begin + sum(spent))
            self.cp.add(begin == 0).only_enforce_if(sizes[0])
            self.cp.add(finish <= self.end)
            loads[i].extend(spent)
            self.size[v, i], self.start[v, i], self.stop[v, i] = sizes, begin, finish
        for own in intervals.values():
            self.cp.add_no_overlap(own)
        self.add_load(loads)

    def _add_edge(self, u: int, i: int, w: int, j: int) -> None:
        """Let batch (w, j) start after batch (u, i) and the transfer of the shards they share (DIVIML 3)."""
        problem, s = self.problem, self.problem.num_shards
        pairs = [(self.on[u, shard, i], self.on[w, shard, j]) for shard in range(s)]
        if not math.isfinite(problem.delay_s[i, j]):
            for producer, consumer in pairs:
                self.cp.add_bool_or(producer.negated(), consumer.negated())
            return
        delay = self.lag(u, i, j, 0)
        each = self.lag(u, i, j, 1) - delay
        if each == 0:
            for producer, consumer in pairs:
                later = self.cp.add(self.start[w, j] >= self.stop[u, i] + delay)
                later.only_enforce_if(producer, consumer)
            return
        shared = [self.cp.new_bool_var(f"shared_{u}_{i}_{w}_{j}_{shard}") for shard in range(s)]
        for both, (producer, consumer) in zip(shared, pairs, strict=True):
            self.cp.add_bool_or(both, producer.negated(), consumer.negated())
            self.cp.add_implication(both, producer)
            self.cp.add_implication(both, consumer)
        any_shared = self.cp.new_bool_var(f"any_{u}_{i}_{w}_{j}")
        self.cp.add_max_equality(any_shared, shared)
        later = self.cp.add(self.start[w, j] >= self.stop[u, i] + delay + each * sum(shared))
        later.only_enforce_if(any_shared)

    def add_hint(self, hint: Placement) -> None:
        """Suggest a placement and its times, where its shards can be numbered as the model does."""
        first = int(self.problem.order[0])
        by_device = np.argsort(hint.device[first], kind="stable")
        renumbered = Placement(hint.device[:, by_device], hint.sequence)
        self.hint_devices(renumbered)
        start = self.first_starts(renumbered)
        for (v, i), begin in self.start.items():
            count = int((renumbered.device[v] == i).sum())
            for c, literal in enumerate(self.size[v, i]):
                self.cp.add_hint(literal, c == count)
            self.cp.add_hint(begin, start.get((v, i), 0))

    def schedule(self, solver: cp_model.CpSolver) -> tuple[IntArray, FloatArray]:
        """Return devices and starts."""
        device = self.devices(solver)
        start_s = np.full((self.problem.num_ops, self.problem.num_devices), np.nan)
        for (v, i), begin in self.start.items():
            if (device[v] == i).any():
                start_s[v, i] = solver.value(begin) * self.grid.unit_s
        return device, start_s
