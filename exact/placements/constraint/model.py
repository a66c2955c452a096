"""The constraint program of `latency`: optional intervals on devices, delays under conditions.

======================  ===============================================================================
symbol                  meaning
======================  ===============================================================================
``on[v, i]``            op v runs on device i
``start[v], stop[v]``   steps at which op v begins and ends
``end``                 the makespan
======================  ===============================================================================
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.exact.placements.constraint.integer_times import STEPS_BITS, IntegerTimes
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.ports import carriers
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


@dataclass(slots=True)
class ConstraintModel:
    """A placement problem as a model of CP-SAT.

    Parameters
    ----------
    problem
        ``latency``; transfers are taken as ``parallel``, a relaxation of the other rules.
    times
        How seconds become steps.
    horizon
        Most steps of the makespan; nothing above it is found.
    """

    problem: PlacementProblem
    times: IntegerTimes
    horizon: int
    cp: cp_model.CpModel = field(init=False)
    end: Any = field(init=False)
    on: dict[tuple[int, int], Any] = field(init=False, default_factory=dict)
    start: dict[int, Any] = field(init=False, default_factory=dict)
    stop: dict[int, Any] = field(init=False, default_factory=dict)
    _carried: set[int] = field(init=False, default_factory=set)
    _lag: dict[int, IntArray] = field(init=False, default_factory=dict)
    _shared: dict[tuple[int, int], Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        from ortools.sat.python import cp_model

        self.cp = cp_model.CpModel()
        self.end = self.cp.new_int_var(0, self.horizon, "makespan")
        self.cp.minimize(self.end)
        self._add_devices()
        self._add_ops()
        for u, w in self.problem.edges.tolist():
            if w not in self._carried:
                self._add_edge(u, w)
        self._add_memory()
        self._break_symmetry()

    def _add_devices(self) -> None:
        """Let each group of colocated ops run on one device: ``sum_i on[v, i] = 1`` (DIVIML, condition 1)."""
        problem = self.problem
        able = problem.over_groups(np.isfinite(problem.op_time_s), np.logical_and)
        for v in range(problem.num_ops):
            leader = int(problem.group[v])
            for i in np.flatnonzero(able[leader]).tolist():
                self.on[v, i] = self.cp.new_bool_var(f"on_{v}_{i}") if v == leader else self.on[leader, i]
            if v == leader:
                self.cp.add_exactly_one(self.on[v, i] for i in np.flatnonzero(able[leader]).tolist())

    def _devices(self, v: int) -> list[int]:
        return [i for i in range(self.problem.num_devices) if (v, i) in self.on]

    def _add_ops(self) -> None:
        """``stop[v] = start[v] + time``, ops of a device do not overlap (DIVIML, conditions 2 and 7), loads fit."""
        carrier = carriers(self.problem).tolist()
        intervals: dict[int, list[Any]] = {i: [] for i in range(self.problem.num_devices)}
        load: dict[int, list[Any]] = {i: [] for i in range(self.problem.num_devices)}
        for v in range(self.problem.num_ops):
            if 0 <= carrier[v] < v:  # starting it at once delays nobody
                self.start[v] = self.stop[v] = self.stop[carrier[v]]
                self._carried.add(v)
                continue
            begin = self.cp.new_int_var(0, self.horizon, f"start_{v}")
            finish = self.cp.new_int_var(0, self.horizon, f"stop_{v}")
            spent: list[Any] = []
            for i in self._devices(v):
                steps, literal = self.times.floor(float(self.problem.time_s[v, i, -1])), self.on[v, i]
                spent.append(steps * literal)
                load[i].append(steps * literal)
                intervals[i].append(self.cp.new_optional_fixed_size_interval_var(begin, steps, literal, f"run_{v}_{i}"))
            self.cp.add(finish == begin + sum(spent))
            self.cp.add(finish <= self.end)
            self.start[v], self.stop[v] = begin, finish
        for own in intervals.values():
            self.cp.add_no_overlap(own)
        for terms in load.values():
            self.cp.add(sum(terms) <= self.end)

    def _lags(self, u: int) -> IntArray:
        """Return (d, d) steps to move u's tensor from row to column; beyond the horizon where there is no link."""
        if u not in self._lag:
            seconds = self.problem.transfers_s(u).tolist()
            reach = self.horizon * self.times.unit_s
            self._lag[u] = np.array(
                [[self.times.floor(s) if s <= 2 * reach else self.horizon + 1 for s in row] for row in seconds]
            )
        return self._lag[u]

    def _add_edge(self, u: int, w: int) -> None:
        """Op w on device j starts after the end of u and the transfer from wherever u is (DIVIML, condition 3)."""
        lags = self._lags(u)
        self.cp.add(self.start[w] >= self.stop[u])
        apart = {int(lags[i, j]) for i in self._devices(u) for j in self._devices(w) if i != j}
        if len(apart) == 1 and self.problem.num_devices > 2:
            steps = apart.pop()
            if steps > 0:
                same = self._same_device(u, w)
                self._start_after(w, self.stop[u] + steps if steps <= self.horizon else None, [same.negated()])
            return
        for j in self._devices(w):
            waits: list[Any] = []
            for i in self._devices(u):
                steps = int(lags[i, j])
                if steps > self.horizon:
                    self._start_after(w, None, [self.on[u, i], self.on[w, j]])
                elif steps:
                    waits.append(steps * self.on[u, i])
            if waits:
                self._start_after(w, self.stop[u] + sum(waits), [self.on[w, j]])

    def _start_after(self, w: int, ready: Any, conditions: list[Any]) -> None:
        """Let w start at `ready` or later where all conditions hold; None: they exclude each other."""
        if ready is None:
            self.cp.add_bool_or([literal.negated() for literal in conditions])
        else:
            self.cp.add(self.start[w] >= ready).only_enforce_if(conditions)

    def _same_device(self, u: int, w: int) -> Any:
        """Return a literal that can only hold where u and w run on the same device."""
        u, w = int(self.problem.group[u]), int(self.problem.group[w])
        if (u, w) not in self._shared:
            same = self.cp.new_bool_var(f"same_{u}_{w}")
            for i in {*self._devices(u), *self._devices(w)}:
                here, there = self.on.get((u, i)), self.on.get((w, i))
                if here is None or there is None:
                    self.cp.add_implication(same, self.on[(w, i) if here is None else (u, i)].negated())
                    continue
                self.cp.add_bool_or(same.negated(), here.negated(), there)
                self.cp.add_bool_or(same.negated(), here, there.negated())
                self.cp.add_bool_or(here.negated(), there.negated(), same)
            self._shared[u, w] = same
        return self._shared[u, w]

    def _add_memory(self) -> None:
        """Let the bytes of a device's ops fit (DIVIML, condition 6), in steps rounded down: nothing allowed is lost."""
        held = self.problem.weight_bytes + self.problem.shard_bytes
        for i, capacity in enumerate(self.problem.capacity_bytes.tolist()):
            own = [(self.on[v, i], float(held[v])) for v in range(self.problem.num_ops) if (v, i) in self.on]
            if not math.isfinite(capacity) or sum(size for _, size in own) <= capacity:
                continue
            unit = 2.0 ** (math.floor(math.log2(capacity)) - STEPS_BITS) if capacity > 0 else 1.0
            room, terms = math.floor(capacity * CAPACITY_SLACK / unit), []
            for literal, size in own:
                if size > capacity * CAPACITY_SLACK:
                    self.cp.add_bool_and(literal.negated())
                else:
                    terms.append(math.floor(size / unit) * literal)
            self.cp.add(sum(terms) <= room)

    def forbid_overfull(self, device: IntArray) -> bool:
        """Forbid that all ops of a device that holds too much are on it again; return whether there is such a device.

        Parameters
        ----------
        device
            (n, 1) devices of a solution.
        """
        full = np.flatnonzero(held_bytes(self.problem, device) > self.problem.capacity_bytes * CAPACITY_SLACK)
        for i in full.tolist():
            own = [self.on[v, i] for v in np.flatnonzero(device[:, 0] == i).tolist()]
            self.cp.add_bool_or([literal.negated() for literal in own])
        return len(full) > 0

    def _break_symmetry(self) -> None:
        """Of devices that may be exchanged, the k-th takes an op only where an op before it is on the (k-1)-th."""
        order = [v for v in self.problem.order.tolist() if self.problem.group[v] == v]
        for members in alike_devices(self.problem):
            devices = [group[0] for group in members]
            for earlier, later in itertools.pairwise(devices):
                used: list[Any] = []
                for v in order:
                    if (v, later) in self.on:
                        self.cp.add_bool_or([*used, self.on[v, later].negated()])
                    if (v, earlier) in self.on:
                        used.append(self.on[v, earlier])

    def add_hint(self, placement: Placement, start_s: FloatArray) -> None:
        """Suggest a placement, its alike devices renamed in the order that the symmetry rows ask for.

        Parameters
        ----------
        placement
            One batch an op.
        start_s
            (n,) seconds at which each op starts in it.
        """
        name, first = np.arange(self.problem.num_devices), np.full(self.problem.num_devices, self.problem.num_ops)
        for at, v in enumerate(self.problem.order.tolist()):
            i = int(placement.device[v, 0])
            first[i] = min(first[i], at)
        for members in alike_devices(self.problem):
            devices = [group[0] for group in members]
            name[sorted(devices, key=lambda i: int(first[i]))] = devices
        for (v, i), literal in self.on.items():
            if self.problem.group[v] == v:
                self.cp.add_hint(literal, bool(name[placement.device[v, 0]] == i))
        for v in self.start.keys() - self._carried:
            self.cp.add_hint(self.start[v], min(self.times.floor(float(start_s[v])), self.horizon))

    def solution(self, solver: Any) -> tuple[IntArray, FloatArray]:
        """Return (n, 1) devices and (n, d) starts in steps of a solution, NaN where an op does not run.

        Parameters
        ----------
        solver
            What answers ``value`` and ``boolean_value``: a solver or a callback.
        """
        n, d = self.problem.num_ops, self.problem.num_devices
        device, start = np.zeros((n, 1), np.int64), np.full((n, d), np.nan)
        for (v, i), literal in self.on.items():
            if solver.boolean_value(literal):
                device[v, 0] = i
        for v, begin in self.start.items():
            start[v, device[v, 0]] = solver.value(begin)
        return device, start
