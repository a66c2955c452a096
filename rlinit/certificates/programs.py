"""Integer programs that schedules satisfy, as the proofs in other people's formats state them.

Nothing that a search derived is in them; of latency longest paths are (`rlinit.certificates.latency_program`). x says
which device an op is on, t when it starts, y which of two ops of one device is first, z which of two devices is first,
and C is the value. Coefficients are whole numbers: C counts what divides every cost exactly, so that it is a whole
number of some best schedule.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations, permutations, product
from typing import Any

from rlinit.arrays import NEARLY
from rlinit.certificates import check
from rlinit.certificates.check import ONE, ZERO
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

CANDIDATES = 6
"""Ops, pairs of ops, or binaries whose cases are tried at a node of a tree before one is chosen."""


_MOST_BITS = 1 << 16
"""Bits of the scale in which costs of stages are whole numbers."""


class Program:
    """Variables by name with C first, groups of which one is 1, and rows ``sum a x >= b`` of whole numbers.

    Parameters
    ----------
    unit
        Seconds or bytes that C counts.
    """

    def __init__(self, unit: Fraction) -> None:
        self.unit = unit
        self.names = ["C"]
        self.binary = {0: False}
        self.groups: list[list[int]] = []
        self.rows: list[tuple[str, dict[int, int], int]] = []
        self.top: dict[int, int] = {}  # a variable that is not whole -> the row that bounds it by C

    def _variable(self, name: str, binary: bool) -> int:
        """Return a new variable."""
        self.names.append(name)
        self.binary[len(self.names) - 1] = binary
        return len(self.names) - 1

    def _row(self, name: str, terms: Any, least: Any) -> None:
        """Add a row of (variable, coefficient) pairs, of which those of one variable are added up."""
        sums = defaultdict[int, Fraction](Fraction)
        for at, amount in terms:
            sums[at] += Fraction(amount)
        row, least = {at: amount for at, amount in sums.items() if amount}, Fraction(least)
        if row or least > 0:
            scale = math.lcm(least.denominator, *(amount.denominator for amount in row.values()))
            self.rows.append((name, {at: int(amount * scale) for at, amount in row.items()}, int(least * scale)))

    def pairs(self, fixed: dict[int, int], point: Any) -> list[int]:
        """Return variables, other than those of groups, of which one must be decided before a point is a schedule.

        Parameters
        ----------
        fixed
            Variables decided.
        point
            A value for each variable, starts in units of C; each op is wholly on one device.
        """
        return []

    def solution(self, plan: Any, value: Fraction) -> dict[int, Fraction]:
        """Return the variables that are not 0 in a plan's schedule.

        Parameters
        ----------
        plan
            As the checker reads it.
        value
            Exact value of the plan.
        """
        return {0: Fraction(math.ceil(value / self.unit))}

    def cut(self, point: Any, decided: bool) -> bool:
        """Add rows that a point violates; return whether there were any.

        Parameters
        ----------
        point
            A value for each variable, starts in units of C.
        decided
            Whether each op is wholly on one device.
        """
        return False


class OrderedProgram(Program):
    """Devices in an order, of which z says where it is not the one given.

    Parameters
    ----------
    unit
        Seconds or bytes that C counts.
    devices
        By number.
    """

    def __init__(self, unit: Fraction, devices: range) -> None:
        super().__init__(unit)
        self.devices = devices
        self.first: dict[tuple[int, int], int] = {}

    def _choose_order(self, unlike: Iterable[tuple[int, int]]) -> None:
        """Let z be 1 where one of two devices is before the other, in no circle."""
        self.first = {pair: self._variable(f"z_{pair[0]}_{pair[1]}", True) for pair in unlike}
        for i, j, k in permutations(self.devices, 3) if self.first else ():
            if i < min(j, k):  # not i before j, j before k and k before i
                ends = [self._before(*pair, -1) for pair in ((i, j), (j, k), (k, i))]
                terms, number = [term for terms, _ in ends for term in terms], sum(number for _, number in ends)
                self._row(f"order_{i}_{j}_{k}", terms, -2 - number)

    def _before(self, i: int, j: int, sign: int) -> tuple[list[tuple[int, int]], int]:
        """Return ``sign`` times whether device i is before device j, as terms and a number."""
        if (i, j) in self.first:
            return [(self.first[i, j], sign)], 0
        if (j, i) in self.first:
            return [(self.first[j, i], -sign)], sign
        return [], sign * (i < j)

    def pairs(self, fixed: dict[int, int], point: Any) -> list[int]:
        """Return pairs of devices that are in no order yet.

        Parameters
        ----------
        fixed, point
            Variables decided, and a value for each.
        """
        return [at for at in self.first.values() if at not in fixed and NEARLY < point[at] < 1 - NEARLY]


class StageProgram(OrderedProgram):
    """Parts of a graph on stages; C is at least what each stage costs, or for `memory` what it holds.

    ``in`` and ``out`` are 1 where a tensor enters or leaves a stage, ``over`` what the bytes beyond a stage's cache
    cost. No edge runs backwards in the order of the devices, which is given for `memory`; devices that are alike stand
    in any one order, and z says which of two others is first.

    Parameters
    ----------
    costs
        The problem.
    """

    def __init__(self, costs: check.Costs) -> None:
        graph, hardware, devices = costs.graph, costs.hardware, range(costs.num_devices)
        self.costs = costs
        self.lattice, pipeline = check.Lattice(graph, check.merged(graph)), costs.objective == "pipeline"
        lattice = self.lattice
        self.held = [sum(graph.part[v] for v in ops) for ops in lattice.parts]
        self.sides = [hardware.io(i) if pipeline else (check.INF, check.INF, 0, 0) for i in devices]
        self.limits = [(hardware.capacity(i, "cache_bytes"), hardware.capacity(i, "memory_bytes")) for i in devices]
        self.works: list[list[Any]] = [
            [None if any(costs.times[v][i] is None for v in ops) else sum(costs.times[v][i] for v in ops)
             for i in devices] for ops in lattice.parts
        ]  # fmt: skip
        numbers = [work for row in self.works for work in row if work is not None]
        numbers += [seconds for _, _, size in lattice.tensors for i in devices for seconds in self._moves(size, i)]
        for i in devices:
            if (cache := self._cache(i)) is not None:
                numbers += [check.over(amount, self.sides[i][0]) for amount in (cache, *self.held)]
        scale = check.common_multiple(numbers, _MOST_BITS)
        check.need(scale, f"costs are whole numbers in no unit of {_MOST_BITS:,} bits")
        super().__init__(Fraction(math.gcd(*(int(number * scale) for number in numbers)) or 1, scale), devices)
        self.on: list[dict[int, int]] = []
        self.moved: dict[tuple[str, int, int], int] = {}
        self.spare: dict[int, tuple[int, Fraction]] = {}
        for p, row in enumerate(self.works):
            self.on.append({i: self._variable(f"x_{p}_{i}", True) for i in devices if row[i] is not None})
            check.need(self.on[p], "an op may run on no device")
            self.groups.append(list(self.on[p].values()))
        for i in devices:
            self._device(i, pipeline)
        self._edges: set[tuple[Any, ...]] = set()
        if pipeline:
            self._order(costs)

    def _moves(self, size: Fraction, i: int) -> list[Fraction]:
        """Return the seconds that a tensor takes into device i and out of it."""
        rate_in, rate_out, delay_in, delay_out = self.sides[i]
        return [check.over(size, rate_in) + delay_in, check.over(size, rate_out) + delay_out]

    def _cache(self, i: int) -> Any:
        """Return the bytes of device i beyond which others cost time; None where none do."""
        return None if self.sides[i][0] == check.INF else self.limits[i][0]

    def _device(self, i: int, pipeline: bool) -> None:
        """Say what device i costs, and that its memory holds what is on it."""
        load: list[Any] = [(0, 1)]
        load += [(on[i], -self.works[p][i] / self.unit) for p, on in enumerate(self.on) if i in on]
        bytes_on = [(on[i], -amount) for on, amount in zip(self.on, self.held, strict=True) if i in on]
        memory, cache = self.limits[i][1], self._cache(i)
        if memory is not None:
            self._row(f"memory_{i}", bytes_on, -memory * check.CAPACITY)
        for t, (u, mask, size) in enumerate(self.lattice.tensors if pipeline else ()):
            for side, seconds, sign in zip(("in", "out"), self._moves(size, i), (1, -1), strict=True):
                if seconds:
                    moved = self.moved[side, t, i] = self._variable(f"{side}_{t}_{i}", True)
                    load.append((moved, -seconds / self.unit))
                    for p in check.places(mask):
                        ends = [(self.on[q][i], amount) for q, amount in ((p, -sign), (u, sign)) if i in self.on[q]]
                        self._row(f"{side}_{t}_{p}_{i}", [(moved, 1), *ends], 0)
        if pipeline and cache is not None:
            spare, cost = self._variable(f"over_{i}", False), check.over(Fraction(1), self.sides[i][0]) / self.unit
            self.spare[i] = spare, cost
            load.append((spare, -1))
            self._row(f"over_{i}", [(spare, 1), *((at, amount * cost) for at, amount in bytes_on)], -cache * cost)
            self.top[spare] = len(self.rows)
        self._row(f"cost_{i}", load, 0)

    def _order(self, costs: check.Costs) -> None:
        """Let z be 1 where one device is before another; those that are alike in all are in the order given."""
        figures = [
            (side, limit, [row[i] for row in self.works])
            for i, side, limit in zip(self.devices, self.sides, self.limits, strict=True)
        ]
        unlike = [(i, j) for i, j in combinations(self.devices, 2) if figures[i] != figures[j]]
        self._choose_order(unlike)

    def solution(self, plan: Any, value: Fraction) -> dict[int, Fraction]:
        """Return the variables that are not 0 in a plan's schedule, where devices that are alike may change places.

        Parameters
        ----------
        plan, value
            The plan as the checker reads it, and its exact value.
        """
        names, rows = self.costs.graph.names, plan["stages"]
        used = [self.costs.hardware.at[row["device"]] for row in rows]
        order = [*used, *(i for i in self.devices if i not in used)]
        likes = [[i for i in self.devices if self._before(i, j, 1)[0] == [] or i == j] for j in order]
        if self.costs.objective == "pipeline":
            order = [sorted(like)[[i in like for i in order[:at]].count(True)] for at, like in enumerate(likes)]
        found = super().solution(plan, value)
        found |= {at: ONE for (i, j), at in self.first.items() if order.index(i) < order.index(j)}
        where = [order[int(plan["assignment"][names[ops[0]]])] for ops in self.lattice.parts]
        found |= {on[i]: ONE for on, i in zip(self.on, where, strict=True)}
        for (side, t, i), at in self.moved.items():
            u, mask, _ = self.lattice.tensors[t]
            inside = {where[p] == i for p in check.places(mask)}
            found[at] = Fraction(
                (True in inside and where[u] != i) if side == "in" else (False in inside and where[u] == i)
            )
        for i, (at, cost) in self.spare.items():
            held = sum(amount for amount, j in zip(self.held, where, strict=True) if j == i)
            found[at] = max(ZERO, held - self.limits[i][0]) * cost
        return {at: amount for at, amount in found.items() if amount or not at}

    def cut(self, point: Any, decided: bool) -> bool:
        """Add, for the first devices of an order, that a part's readers are there only where it is.

        Parameters
        ----------
        point, decided
            A value for each variable; whether each part is wholly on one device.
        """

        def earlier(i: int) -> float:
            found = (self._before(i, j, 1) for j in self.devices if j != i)
            return float(sum(number + sum(sign * point[at] for at, sign in terms) for terms, number in found))

        order, before = sorted(self.devices, key=lambda i: (-earlier(i), i)), len(self.rows)
        for count in range(1, len(order)):
            inside = frozenset(order[:count])
            slack: list[Any] = [self._before(j, i, 1) for i in inside for j in order[count:]]
            spare, fixed = [term for terms, _ in slack for term in terms], sum(number for _, number in slack)
            if fixed + sum(sign * point[at] for at, sign in spare) > 1 - NEARLY:
                continue
            for u, mask, _ in self.lattice.tensors:
                for v in check.places(mask):
                    ends = [(at, sign) for p, sign in ((u, 1), (v, -1)) for i, at in self.on[p].items() if i in inside]
                    terms, key = [*ends, *spare], (u, v, inside)
                    if key not in self._edges and sum(sign * point[at] for at, sign in terms) + fixed < -NEARLY:
                        self._edges.add(key)
                        self._row(f"edge_{u}_{v}_{'_'.join(map(str, sorted(inside)))}", terms, -fixed)
        return len(self.rows) > before


class PlacementProgram(OrderedProgram):
    """Devices of ops in any schedule, whatever it costs: memory, forbidden devices, groups, paths and stages in order.

    No row is about C, which is 0 of a schedule, so that a proof of C >= 1 says that there is none.

    Parameters
    ----------
    costs
        The problem.
    """

    def __init__(self, costs: check.Costs) -> None:
        super().__init__(ONE, devices := range(costs.num_devices))
        graph, ways = costs.graph, dict[int, dict[int, tuple[int, ...]]]()  # op -> variable -> shards of each device
        for ops in graph.groups:
            spreads = check.spreads_of(costs, ops)
            self.groups.append([self._variable(f"x_{ops[0]}_{at}", True) for at in range(max(1, len(spreads)))])
            ways |= {v: dict(zip(self.groups[-1], spreads, strict=False)) for v in ops}
            self._row(f"none_{ops[0]}", [] if spreads else [(self.groups[-1][0], -1)], 0)
        for i, runs in product(devices, (-1, *(v for v in ways if costs.beside[v]))):
            held = ((x, check.share(costs, v, i, way[i], runs)) for v in ways for x, way in ways[v].items() if way[i])
            self._row(f"memory_{i}_{runs + 1}", ((x, -each) for x, each in held), -1)
        placed = costs.objective in ("latency", "throughput")
        if costs.objective == "pipeline" and not costs.scattered:
            self._choose_order(combinations(devices, 2))
        for u, v, _ in graph.edges if not costs.scattered else ():
            for (x, sent), (y, received) in product(ways[u].items(), ways[v].items()):
                terms, number = list[tuple[int, int]](), int(placed and check.linked(costs, sent, received))
                if not placed and sent != received:
                    terms, number = self._before(sent.index(1), received.index(1), 1)
                if sent != received and (terms or not number):
                    self._row(f"edge_{u}_{v}_{x}_{y}", [(x, -1), (y, -1), *terms], -1 - number)


class LoadProgram(Program):
    """Devices of ops, each of which does all of its ops one after another; C is at least what any of them does.

    Parameters
    ----------
    costs
        The problem.
    """

    def __init__(self, costs: check.Costs) -> None:
        super().__init__(check.quantum_of(costs) or ONE)
        self.on: dict[int, tuple[int, int]] = {}
        for v, row in enumerate(costs.times):
            mine = {self._variable(f"x_{v}_{i}", True): (v, i) for i, each in enumerate(row) if each is not None}
            self.groups.append(list(mine))
            self.on |= mine
        for i in costs.devices:
            load = ((x, -costs.times[v][j] / self.unit) for x, (v, j) in self.on.items() if j == i)
            self._row(f"load_{i}", [(0, 1), *load], 0)


def exact_plan(
    plan: Plan, graph: Graph, hardware: Hardware
) -> tuple[Any, check.Graph, check.Hardware, tuple[Fraction, ...]]:
    """Return a plan, its graph and hardware as the checker reads them, and the exact values of the plan, if it has any.

    Parameters
    ----------
    plan
        As `verify` accepts it.
    graph, hardware
        What the plan is for.

    Raises
    ------
    InvalidPlan
        The checker refuses the plan; the message says why.
    """
    try:
        written = check.parse(json.dumps(plan.to_dict()), "rlinit-plan", "the plan")
        raw_graph = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "the graph"))
        raw_hardware = check.Hardware(check.parse(json.dumps(hardware.to_dict()), "rlinit-hardware", "the hardware"))
        check.need_known(written)
        values = () if plan.status == "infeasible" else check.exact_values(written, raw_graph, raw_hardware)
    except check.Refuted as problem:
        raise InvalidPlan(f"the plan cannot be certified: {problem}") from None
    return written, raw_graph, raw_hardware, values
