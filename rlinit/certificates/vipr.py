"""Writes the proof of a bound by a tree of linear programs in VIPR's format 1.0, which tools such as viprchk check.

The file holds a mixed-integer program that every schedule satisfies, nothing that a search derived: x says which
device an op is on, t when it starts, y which of two ops of one device is first, and C is the value. The tree branches
on x and y; every leaf is a sum of rows with multipliers, added up in exact numbers. What the stand-alone checker
concludes from time windows has no place in the format: this tree is another one, larger, with bounds from linear
programs alone.

The format: Cheung, Gleixner, Steffy, Verifying Integer Programming Results, IPCO 2017.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.certificates.relaxation import Relaxation
from rlinit.certificates.writing import exact_plan
from rlinit.errors import InvalidPlan
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

_ROUNDS = 8
"""Rounds in which rows that the root's relaxation violates are added."""

_PARTS = 2**40
"""Multipliers are whole numbers of parts of this."""

_PENALTY = 10.0
"""Bounds that a device's memory lacks costs, so that there is always a point."""

_MOST_DEPTH = 600
"""Decisions above a node of the tree."""

Key = tuple[Any, ...]
"""A constraint: ("low" | "high", variable), ("one", group), ("row", row) or ("derived", place)."""


class Program:
    """Variables by name with C first, groups of which one is 1, and rows ``sum a x >= b``."""

    def __init__(self, unit: Fraction) -> None:
        self.unit = unit  # what C counts
        self.names = ["C"]
        self.binary = {0: False}
        self.groups: list[list[int]] = []
        self.rows: list[tuple[str, dict[int, Fraction], Fraction]] = []
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
        row = {at: amount for at, amount in sums.items() if amount}
        if row or least > 0:
            self.rows.append((name, row, Fraction(least)))

    def order(self, fixed: dict[int, int], point: Any) -> int | None:
        """Return a variable that orders two ops of one device that run at once in a point; None where none do.

        Parameters
        ----------
        fixed
            Variables decided.
        point
            A value for each variable, starts in parts of the goal.
        """
        return None

    def cut(self, point: Any) -> bool:
        """Add rows that a point with ops whole on devices violates; return whether there were any."""
        return False


class StageProgram(Program):
    """Parts of a graph on stages; C is at least what each stage costs, or for `memory` what it holds.

    ``in`` and ``out`` are 1 where a tensor enters or leaves a stage, ``over`` the bytes beyond a stage's cache. Where
    all devices are alike, or stand in order, no edge runs backwards.
    """

    def __init__(self, costs: check.Costs) -> None:
        super().__init__(Fraction(1))
        graph, hardware, devices = costs.graph, costs.hardware, range(costs.num_devices)
        lattice, pipeline = check.Lattice(graph, check.merged(graph)), costs.objective == "pipeline"
        sides = [hardware.io(i) for i in devices] if pipeline else []  # bytes of a stage need no link
        limits = [(hardware.capacity(i, "cache_bytes"), hardware.capacity(i, "memory_bytes")) for i in devices]
        held = [sum(graph.part[v] for v in ops) for ops in lattice.parts]
        on: list[dict[int, int]] = []
        loads: list[list[Any]] = [[(0, 1)] for _ in devices]
        for p, ops in enumerate(lattice.parts):
            allowed = [i for i in devices if all(costs.times[v][i] is not None for v in ops)]
            on.append({i: self._variable(f"x_{p}_{i}", True) for i in allowed})
            self.groups.append(list(on[p].values()))
            for i, at in on[p].items():
                loads[i].append((at, -sum(costs.times[v][i] for v in ops)))
        for i in devices:
            cache, memory = limits[i]
            bytes_on = [(on[p][i], -amount) for p, amount in enumerate(held) if i in on[p]]
            if memory is not None:
                self._row(f"memory_{i}", bytes_on, -memory * check.CAPACITY)
            for t, (u, mask, size) in enumerate(lattice.tensors if pipeline else ()):
                rate_in, rate_out, delay_in, delay_out = sides[i]
                readers = [p for p in range(len(lattice.parts)) if mask >> p & 1]
                for side, seconds, sign in (
                    ("in", check.over(size, rate_in) + delay_in, 1),
                    ("out", check.over(size, rate_out) + delay_out, -1),
                ):
                    if seconds:
                        moved = self._variable(f"{side}_{t}_{i}", True)
                        loads[i].append((moved, -seconds))
                        for p in readers:
                            ends = [(on[q][i], amount) for q, amount in ((p, -sign), (u, sign)) if i in on[q]]
                            self._row(f"{side}_{t}_{p}_{i}", [(moved, 1), *ends], 0)
            if pipeline and cache is not None and sides[i][0] != check.INF:
                spare = self._variable(f"over_{i}", False)
                loads[i].append((spare, -check.over(Fraction(1), sides[i][0])))
                self._row(f"over_{i}", [(spare, 1), *bytes_on], -cache)
                self.top[spare] = len(self.rows)
            self._row(f"cost_{i}", loads[i], 0)
        same_times = all(len(set(row)) == 1 for row in costs.times)
        alike = not pipeline or (same_times and len(set(zip(sides, limits, strict=True))) == 1)
        for u, mask, _ in lattice.tensors if alike else ():
            for v in (p for p in range(len(lattice.parts)) if mask >> p & 1):
                for i in devices[:-1]:
                    before = [(at, sign) for p, sign in ((u, 1), (v, -1)) for j, at in on[p].items() if j <= i]
                    self._row(f"edge_{u}_{v}_{i}", before, 0)


class LatencyProgram(Program):
    """A schedule of ops on devices, no longer than a known one; rows are those of trees in `rlinit.certificates.check`.

    Parameters
    ----------
    costs
        The problem.
    threshold
        Seconds that are to be proven.
    longest
        Seconds of the known schedule.
    time_limit_s
        Of the search for rows.
    """

    def __init__(self, costs: check.Costs, threshold: Fraction, longest: Fraction, time_limit_s: float) -> None:
        self.windows = windows = check.Windows(costs, threshold)
        super().__init__(1 / windows.units)
        self.longest = int(longest * windows.units)
        self.state = state = windows.root.copy()
        for group in windows.groups:
            common = set(state.devices[group[0]]).intersection(*(state.devices[v] for v in group))
            check.need(common, "an op fits on no device")
            for v in group:
                state.devices[v] = sorted(common)
        self.share: dict[tuple[int, int], int] = {}
        for group in windows.groups:
            on = {i: self._variable(f"x_{group[0]}_{i}", True) for i in state.devices[group[0]]}
            self.groups.append(list(on.values()))
            self.share |= {(v, i): at for v in group for i, at in on.items()}
        self.start = [self._variable(f"t_{v}", False) for v in range(len(state.devices))]
        self.orders: dict[tuple[int, int, int], int] = {}
        self.links: set[str] = set()
        program, budget = Relaxation(windows, state, []), Budget(time_limit_s)
        for _ in range(_ROUNDS):
            program.solve(budget.remaining_s)
            if program.dual is None or budget.expired or not program.separate():
                break
        for kind, *args in program.rows:
            if kind != "head":  # t >= 0, which is a bound
                self.top |= {self.start[args[0]]: len(self.rows)} if kind == "tail" else {}
                name = "_".join(map(str, ["end" if kind == "tail" else kind, *args])).replace("-1", "end")
                share, start, end, number = check.row_of(windows, state, kind, list(args))
                terms = [(self.share[key], -amount) for key, amount in share.items()]
                self._row(name, [*terms, *((self.start[v], -amount) for v, amount in start.items()), (0, end)], number)

    def order(self, fixed: dict[int, int], point: Any) -> int | None:
        """Return a variable that orders two ops of one device that run at once in a point; None where none do.

        Parameters
        ----------
        fixed
            Variables decided.
        point
            A value for each variable, starts in parts of the goal.
        """
        windows, size, chosen = self.windows, float(self.windows.most + 1), None
        best = 1e-6 * size
        on = defaultdict[int, list[int]](list)
        for (v, i), at in self.share.items():
            if point[at] > 0.5:
                on[i].append(v)
        begin = {v: point[at] * size for v, at in enumerate(self.start)}
        for i, ops in on.items():
            for at, u in enumerate(ops):
                for v in ops[:at]:
                    ends = (begin[w] + float(windows.time[w][i]) for w in (u, v))
                    over = min(ends) - max(begin[u], begin[v])
                    ordered = (self.state.later[u] >> v | self.state.later[v] >> u) & 1
                    if over > best and not ordered and self.orders.get((v, u, i)) not in fixed:
                        best, chosen = over, (v, u, i)
        if chosen is None:
            return None
        if chosen not in self.orders:
            self._order(*chosen)
        return self.orders[chosen]

    def cut(self, point: Any) -> bool:
        """Add the transfers that a point with ops whole on devices leaves out; return whether there were any."""
        size, before = float(self.windows.most + 1), len(self.rows)
        on = {v: i for (v, i), at in self.share.items() if point[at] > 0.5}
        for v, moves in enumerate(self.windows.before):
            for u, move in moves:
                i, j = on[u], on[v]
                due = (point[self.start[u]] + (self.windows.time[u][i] + move[i][j]) / size) * (1 - 1e-9) - 1e-9
                name = f"link_{u}_{v}_{i}_{j}_{move[i][j]}"
                if move[i][j] and point[self.start[v]] < due and name not in self.links:
                    self.links.add(name)
                    times = [(self.share[u, k], -self.windows.time[u][k]) for k in self.state.devices[u]]
                    ends = [(self.start[v], 1), (self.start[u], -1), (self.share[u, i], -move[i][j])]
                    self._row(name, [*ends, (self.share[v, j], -move[i][j]), *times], -move[i][j])
        return len(self.rows) > before

    def _order(self, u: int, v: int, i: int) -> None:
        """Let y be 1 where u is before v on device i, else 0; elsewhere the rows say nothing."""
        y = self.orders[u, v, i] = self._variable(f"y_{u}_{v}_{i}", True)
        for first, second, sign in ((u, v, -1), (v, u, 1)):
            lasts = [(self.share[first, k], -self.windows.time[first][k]) for k in self.state.devices[first]]
            both = [(self.share[w, i], -self.longest) for w in (u, v)]
            times = [(self.start[second], 1), (self.start[first], -1), (y, sign * self.longest)]
            self._row(f"order_{first}_{second}_{i}", [*times, *lasts, *both], self.longest * (sign - 5) // 2)


class _OpenCase(Exception):
    """A case that no linear program closes, or that there is no time for."""


class Proof:
    """Derivations of ``C >= goal`` from a program, in the order of a search in depth.

    Parameters
    ----------
    program
        What all schedules satisfy.
    goal
        In units of C.
    budget
        Ends the search.
    """

    def __init__(self, program: Program, goal: Fraction, budget: Budget) -> None:
        self.program, self.goal, self.budget = program, goal, budget
        self.derived: list[tuple[str, dict[int, Fraction], Fraction, str, list[Any]]] = []  # sense, row, reason
        self.root: tuple[list[Any], Fraction] = [(("low", 0), Fraction(1))], Fraction(0)

    def run(self) -> bool:
        """Prove the goal, or else what the root's linear program says without a tree; return whether it is the goal."""
        try:
            if self.goal > 0:
                self._prove({}, {})
                return True
        except _OpenCase:
            pass
        terms, self.goal = self.root
        self.derived = [("G", {0: Fraction(1)}, self.goal, "lin", terms)]
        return False

    def _derive(self, sense: str, row: dict[int, Fraction], side: Fraction, reason: str, terms: list[Any]) -> Key:
        self.derived.append((sense, row, side, reason, terms))
        return "derived", len(self.derived) - 1

    def _prove(self, fixed: dict[int, int], assumed: dict[int, Key]) -> Key:
        """Return the constraint ``C >= goal`` under assumptions that fix variables."""
        if self.budget.expired or len(fixed) > _MOST_DEPTH:
            raise _OpenCase
        weights, point = self._solve(fixed)
        terms, bound = self._sum(weights, fixed, assumed)
        self.root = self.root if fixed else (terms, bound)
        if bound >= self.goal:
            return self._derive("G", {0: Fraction(1)}, self.goal, "lin", terms)
        branch = self._fractional(fixed, point)
        if branch is None and self.program.cut(point):
            return self._prove(fixed, assumed)
        if branch is None:
            branch = self.program.order(fixed, point)
        if branch is None:
            raise _OpenCase
        sides = []
        for value in (1, 0):
            sense, row = "G" if value else "L", {branch: Fraction(1)}
            case = self._derive(sense, row, Fraction(value), "asm", [])
            below = {branch: value}
            sides += [self._prove(fixed | below, assumed | {branch: case}), case]
        return self._derive("G", {0: Fraction(1)}, self.goal, "uns", sides)

    def _fractional(self, fixed: dict[int, int], point: Any) -> int | None:
        """Return the largest share of the group that is least decided, of those that are not."""
        chosen, least = None, 1 - 1e-6
        for group in self.program.groups:
            free = [at for at in group if at not in fixed]
            most = max((float(point[at]) for at in free), default=1.0)
            if most < least and not any(fixed.get(at) for at in group):
                chosen, least = max(free, key=lambda at: float(point[at])), most
        return chosen

    def _solve(self, fixed: dict[int, int]) -> tuple[dict[int, int], Any]:
        """Return whole multipliers of rows, and the point, of the linear program with variables fixed."""
        program, size = self.program, float(self.goal) or 1.0
        count, num_rows = len(program.names), len(program.rows)
        shares = [all(map(program.binary.get, row)) for _, row, _ in program.rows]  # of memory: it may lack some here
        scales = [
            float(max(map(abs, row.values()), default=1)) if alone else size
            for (_, row, _), alone in zip(program.rows, shares, strict=True)
        ]
        entries = [
            (r, at, -float(amount) / scale * (1.0 if program.binary[at] else size))
            for r, ((_, row, _), scale) in enumerate(zip(program.rows, scales, strict=True))
            for at, amount in row.items()
        ]
        lacking = [(r, count + r, -1.0) for r, alone in enumerate(shares) if alone]
        at_rows, columns, values = zip(*entries, *lacking, strict=True)
        above: Any = csr_matrix((values, (at_rows, columns)), shape=(num_rows, count + num_rows))
        members = [(g, at) for g, group in enumerate(program.groups) for at in group]
        ones: Any = np.ones(len(members)), tuple(zip(*members, strict=True))
        equal: Any = csr_matrix(ones, shape=(len(program.groups), count + num_rows))
        box: Any = np.zeros((count + num_rows, 2))
        box[:count, 1] = [1.0 if program.binary[at] else np.inf for at in range(count)]
        box[count:, 1] = np.inf
        for at, value in fixed.items():
            box[at] = value
        cost = np.concatenate([[1.0], np.zeros(count - 1), np.full(num_rows, _PENALTY)])
        least = [-float(side) / scale for (_, _, side), scale in zip(program.rows, scales, strict=True)]
        found = linprog(
            cost, A_ub=above, b_ub=least, A_eq=equal, b_eq=np.ones(len(program.groups)), bounds=box,
            method="highs", options={"time_limit": max(0.01, self.budget.remaining_s)},
        )  # fmt: skip
        if found.x is None:
            raise _OpenCase
        dual = -np.asarray(found.ineqlin.marginals) * size / np.array(scales)
        return {r: whole for r, amount in enumerate(dual) if (whole := round(float(amount) * _PARTS)) > 0}, found.x

    def _sum(
        self, weights: dict[int, int], fixed: dict[int, int], assumed: dict[int, Key]
    ) -> tuple[list[tuple[Key, Fraction]], Fraction]:
        """Return the sum of rows that says C >= a number, whatever the multipliers are, and that number.

        What they leave of a start is taken away by its row ``end`` or by its bound; of a group, by the largest
        coefficient times its sum, and what is then negative, or positive where an assumption says 0, by bounds.
        """
        program, terms = self.program, defaultdict[Key, Fraction](Fraction)
        left, side = defaultdict[int, Fraction](Fraction), Fraction(0)

        def take(key: Key, row: dict[int, Fraction], least: Fraction, weight: Fraction) -> None:
            nonlocal side
            terms[key] += weight
            side += weight * least
            for at, amount in row.items():
                left[at] += weight * amount

        def bound(at: int) -> None:
            """Take away what is left of a variable by its lower or upper bound, assumed or of the program."""
            amount = left[at]
            high = amount > 0
            if fixed.get(at) == 1 - high:
                take(assumed[at], {at: Fraction(1)}, Fraction(fixed[at]), -amount)
            elif amount:
                take(("high" if high else "low", at), {at: Fraction(1)}, Fraction(int(high)), -amount)

        for r, weight in weights.items():
            take(("row", r), *program.rows[r][1:], Fraction(weight))
        for at, top in program.top.items():
            if left[at] > 0:
                take(("row", top), *program.rows[top][1:], left[at] / -program.rows[top][1][at])
        for g, group in enumerate(program.groups):
            free = [left[at] for at in group if fixed.get(at) != 0]
            most = max(free) if free else min(left[at] for at in group)
            if most:
                take(("one", g), dict.fromkeys(group, Fraction(1)), Fraction(1), -most)
        for at in [at for at in left if at]:
            bound(at)
        if left[0] <= 0:
            return [(("low", 0), Fraction(1))], Fraction(0)
        return [(key, weight / left[0]) for key, weight in terms.items() if weight], side / left[0]

    def lines(self, about: list[str]) -> Iterator[str]:
        """Yield the lines of the file, with comments first."""
        program = self.program
        bounds = [("low", at) for at in range(len(program.names))]
        grouped = {at for group in program.groups for at in group}
        bounds += [("high", at) for at, binary in program.binary.items() if binary and at not in grouped]
        others = [("one", g) for g in range(len(program.groups))] + [("row", r) for r in range(len(program.rows))]
        index: dict[Key, int] = {key: place for place, key in enumerate([*bounds, *others])}
        whole = [at for at, binary in program.binary.items() if binary]
        yield from (f"% {line}" for line in about)
        yield from ("VER 1.0", f"VAR {len(program.names)}", *program.names)
        yield from (
            f"INT {len(whole)}",
            " ".join(map(str, whole)),
            "OBJ min",
            "1 0 1",
            f"CON {len(index)} {len(bounds)}",
        )
        for side, at in bounds:
            yield f"{side}_{program.names[at]} {'GL'[side == 'high']} {int(side == 'high')} 1 {at} 1"
        yield from (f"one_{g} E 1 {_pairs(dict.fromkeys(group, 1))}" for g, group in enumerate(program.groups))
        yield from (f"{name} G {side} {_pairs(row)}" for name, row, side in program.rows)
        yield from (f"RTP range {self.goal} inf", "SOL 0", f"DER {len(self.derived)}")
        index |= {("derived", place): len(index) + place for place in range(len(self.derived))}
        for place, (sense, row, least, reason, terms) in enumerate(self.derived):
            told = [reason]
            if reason == "uns":
                told += [str(index[key]) for key in terms]
            elif reason == "lin":
                told.append(_pairs({index[key]: weight for key, weight in terms}))
            # viprchk knows the objective in the last derivation by this word alone.
            last = place == len(self.derived) - 1 and row == {0: 1}
            yield f"d{place} {sense} {least} {'OBJ' if last else _pairs(row)} {{ {' '.join(told)} }} -1"


def _pairs(row: Any) -> str:
    """Return coefficients as the format has them: how many, and places and values in turn."""
    return " ".join([str(len(row)), *(f"{at} {amount}" for at, amount in row.items())])


def write_vipr(path: str | Path, plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float = 60.0) -> float:
    """Write a proof of a lower bound in VIPR's format; return the bound that it proves, which may be below the plan's.

    Parameters
    ----------
    path
        The file, which ``viprchk FILE`` reads.
    plan
        A plan with a schedule, as `verify` accepts it.
    graph, hardware
        What the plan is for.
    time_limit_s
        Of the search for a tree. Where it ends first, the file proves what one linear program says.

    Returns
    -------
    float
        Seconds, or for `memory` bytes of the largest stage.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, or is one that certificates do not know; the message says why.
    """
    budget = Budget(time_limit_s)
    try:
        check.need(plan.groups is None, "stages of several devices have no proofs in VIPR's format")
        check.need(plan.objective != "throughput", "VIPR files are of latency, pipelines and memory, not of throughput")
        read = exact_plan(plan, graph, hardware)
        costs, value = check.Costs(*read[:3], 0, read[3]), read[3][0]
        bound = read[0]["bounds"][0] if plan.bounds else Fraction(0)
        wanted = min(value, (bound or value) * (1 - check.ROUNDING))
        program: Program = StageProgram(costs) if plan.stages else Program(Fraction(1))
        if plan.objective == "latency" and wanted > 0:
            program = LatencyProgram(costs, wanted, value, time_limit_s / 4)
            wanted = Fraction(program.windows.most + 1) * program.unit
    except check.Refuted as problem:
        raise InvalidPlan(f"the plan cannot be certified: {problem}") from None
    proof = Proof(program, wanted / program.unit, budget)
    proof.run()
    proven = proof.goal * program.unit
    about = [
        f"rlinit: the {plan.objective} of {plan.graph!r} on {plan.hardware!r} is at least {float(proven)}",
        f"C counts units of {program.unit}. Ops (or parts that stay together) and devices are numbered from 0.",
        "CON is what is taken for granted of every schedule that is no longer than the plan; nothing else is.",
    ]
    write_atomically(path, "".join(f"{line}\n" for line in proof.lines(about)))
    return float(proven)
