"""Proves a bound by a tree of linear programs, for files in other people's formats.

The tree is of an integer program of `rlinit.certificates.programs` and branches on its binaries; every leaf is a
sum of rows with multipliers, added up in exact numbers and rounded up where C is a whole number. What the stand-alone
checker concludes from time windows has no place in these formats: this tree is another one, larger, with bounds from
linear programs alone.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from pyscipopt import LP

from rlinit.arrays import NEARLY, ROUNDING
from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.certificates.derivations import C, Derivations, Key
from rlinit.certificates.latency_program import LatencyProgram
from rlinit.certificates.learning import Learning
from rlinit.certificates.programs import CANDIDATES, PlacementProgram, Program, StageProgram, exact_plan
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

_PARTS = (1, 5040, 2**40)
"""Parts of which multipliers are whole numbers: the first that do are taken, for short files and exact sums."""

_SEVERAL = "stages of several devices have no proofs in other formats, but with `certify`"

MOST_PAIRS = 1 << 20
"""Pairs of ops times devices, beyond which no search that learns starts, for it looks at all of them at once."""

_MOST_DEPTH = 600
"""Decisions above a node of the tree."""


class _OpenCase(Exception):
    """A case that no linear program closes, or that there is no time for."""


class _Sum(NamedTuple):
    """Whole multipliers of constraints, and their sum: ``of_c`` C >= side; a contradiction where that is 0 >= 1."""

    terms: dict[Key, int]
    of_c: int
    side: int

    def least(self) -> int:
        """Return the least C, which is a whole number."""
        return -(-self.side // self.of_c)


class Proof(Derivations):
    """Derivations of ``C >= goal`` from a program, in the order of a search in depth.

    Parameters
    ----------
    program
        What all schedules satisfy.
    goal
        In units of C.
    budget
        Ends the search.
    most_depth
        Decisions above a node of the tree.
    """

    def __init__(self, program: Program, goal: int, budget: Budget, most_depth: int = _MOST_DEPTH) -> None:
        super().__init__(program, goal)
        self.budget, self.most_depth = budget, most_depth
        self.size = max(1, goal)  # what a start or C is a part of, in the linear program
        self.root = _Sum({("low", 0): 1}, 1, 0)
        self._lp, self._fixed = LP(), dict[int, int]()
        self._scales: list[int] = []
        self._count = 0

    def run(self, *less: int) -> bool:
        """Prove the goal, or else what the root's linear program says without a tree; return whether it is a goal.

        Parameters
        ----------
        less
            Goals to try in turn where there is no proof of the first.
        """
        for goal in (self.goal, *less):
            self.goal, self.derived, self.bytes = goal, [], 0
            try:
                if goal > 0:
                    self._prove({}, {})
                    return True
            except _OpenCase:
                pass
        self.goal, self.derived = self.root.least(), []
        self._conclude(self.root)
        return False

    def _conclude(self, found: _Sum) -> Key:
        """Derive ``C >= goal`` from a sum of rows."""
        exact = not found.of_c or found.side >= self.goal * found.of_c
        common = math.gcd(found.of_c, *found.terms.values())
        terms = [(key, weight // common) for key, weight in found.terms.items() if weight]
        return self.derive("G", C, self.goal, "lin" if exact else "rnd", terms, found.of_c // common)

    def _prove(self, fixed: dict[int, int], assumed: dict[int, Key]) -> Key:
        """Return the constraint ``C >= goal`` under assumptions that fix variables; it is derived last."""
        if self.budget.expired:
            raise _OpenCase
        while True:
            value, dual, point = self._solve(fixed)
            if self._closes(value) or not fixed:
                longest = -(-max(self._scales, default=1) // self.size)
                for parts in (_PARTS[0], _PARTS[1], _PARTS[2] * longest) if point else (longest, _PARTS[2] * longest):
                    found = self._sum(dual, parts, fixed, assumed)
                    if not fixed and found.of_c and found.least() > self.root.least():
                        self.root = found
                    if found.side > 0 if not found.of_c else found.least() >= self.goal:
                        return self._conclude(found)
            decided = point is not None and self._decided(point)
            if point is None or not self.program.cut(point, decided):
                break
        if len(fixed) >= self.most_depth:
            raise _OpenCase
        branch = self._branch(fixed, value, point, decided)
        sides = []
        for value in (1, 0):
            case = self.derive("LG"[value], {branch: 1}, value, "asm", [])
            proven = self._prove(fixed | {branch: value}, assumed | {branch: case})
            if case not in self.rests[proven]:
                return proven
            sides.append((proven, case))
        return self.derive("G", C, self.goal, "uns", sides)

    def cases_of_loads(self, on: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
        """Yield the nodes of the tree as `check.prove_load` reads them.

        Parameters
        ----------
        on
            The op and the device of each binary; rows are of devices, in order.
        """
        stack = [("derived", len(self.derived) - 1)]
        while stack:
            found = self.derived[stack.pop()[1]]
            if found.reason == "uns":
                (here, case), (elsewhere, _) = found.terms
                ((v, i),) = (on[x] for x in self.derived[case[1]].row)
                yield {"op": v, "device": i}
                stack += [elsewhere, here]
            else:
                terms = dict(found.terms)
                weights = [terms.get(("row", i), 0) for i in range(len(self.program.rows))]
                yield {"multipliers": [str(Fraction(each, sum(weights) or 1)) for each in weights]}

    def _closes(self, value: float) -> bool:
        """Return whether C, in parts of the goal, is rounded up to it."""
        return value > min(1 - NEARLY, (self.goal - 1 + NEARLY) / self.size)

    def _decided(self, point: Any) -> bool:
        """Return whether one of each group is 1."""
        return all(max(point[at] for at in group) > 1 - NEARLY for group in self.program.groups)

    def _branch(self, fixed: dict[int, int], value: float, point: Any, decided: bool) -> int:
        """Return the variable whose two cases promise most, of those that a point leaves open."""
        program, chosen = self.program, list[int]()
        left = ([at for at in group if fixed.get(at) != 0] for group in program.groups)
        open_groups = [group for group in left if len(group) > 1 and not any(fixed.get(at) for at in group)]
        if point is not None and not decided:
            tops = [max(group, key=lambda at: point[at]) for group in open_groups]
            chosen = [at for at in tops if point[at] < 1 - NEARLY]
            chosen = sorted(chosen, key=lambda at: abs(point[at] - 0.5))[:CANDIDATES]
        elif point is not None:
            chosen = program.pairs(fixed, point)
        chosen = chosen or [group[0] for group in open_groups[:1]]
        if not chosen:
            raise _OpenCase
        best, most = chosen[0], -1.0
        for at in chosen if len(chosen) > 1 else ():
            ends = [self._solve(fixed | {at: end})[0] for end in (1, 0)]
            gains = [(1.0 if self._closes(end) else end) - value for end in ends]
            gain = max(gains[0], 1e-4) * max(gains[1], 1e-4)
            if gain > most:
                best, most = at, gain
        return best

    def _solve(self, fixed: dict[int, int]) -> tuple[float, Any, Any]:
        """Return C in parts of the goal, multipliers of groups and rows, and the point; or inf, a ray and None."""
        self._load()
        lp, binary = self._lp, self.program.binary
        for at in self._fixed.keys() - fixed.keys():
            lp.chgBound(at, 0.0, 1.0)
        for at, value in fixed.items():
            if self._fixed.get(at) != value:
                lp.chgBound(at, float(value), float(value))
        self._fixed = dict(fixed)
        try:
            lp.solve()
        except Exception as problem:  # SCIP has no class of its own for "error in LP solver"
            raise _OpenCase from problem
        if lp.isOptimal():
            point = [x if binary[at] else x * self.size for at, x in enumerate(lp.getPrimal())]
            return lp.getObjVal(), lp.getDual(), point
        ray = lp.getDualRay()
        if ray is None:
            raise _OpenCase
        return math.inf, ray, None

    def _load(self) -> None:
        """Give the linear program the variables and rows that it does not know yet."""
        program, lp, size = self.program, self._lp, self.size
        count, most = len(program.names), lp.infinity()
        if self._count < count:
            new = range(self._count, count)
            highs = [1.0 if program.binary[at] else most for at in new]
            lp.addCols([[] for _ in new], objs=[float(at == 0) for at in new], lbs=[0.0] * len(highs), ubs=highs)
        if not self._count:
            for group in program.groups:
                lp.addRow([(at, 1.0) for at in group], lhs=1.0, rhs=1.0)
        self._count = count
        for _, row, side in program.rows[len(self._scales) :]:
            scaled = {at: amount if program.binary[at] else amount * size for at, amount in row.items()}
            scale = max(map(abs, scaled.values()), default=1)
            self._scales.append(scale)
            lp.addRow([(at, amount / scale) for at, amount in scaled.items()], lhs=side / scale, rhs=most)

    def _sum(self, dual: Any, parts: int, fixed: dict[int, int], assumed: dict[int, Key]) -> _Sum:
        """Return the sum of rows that says C >= a number, whatever the multipliers are, which count in parts.

        What they leave of a start is taken away by its row ``end`` or by its bound; of a group, by the largest
        coefficient times its sum, and what is then negative, or positive where an assumption says 0, by bounds.
        """
        program, terms = self.program, defaultdict[Key, int](int)
        left, side = defaultdict[int, int](int), 0

        def take(key: Key, row: dict[int, int], least: int, weight: int) -> None:
            nonlocal side
            terms[key] += weight
            side += weight * least
            for at, amount in row.items():
                left[at] += weight * amount

        duals = zip(dual[len(program.groups) :], self._scales, strict=True)
        for r, (amount, scale) in enumerate(duals):
            if amount > ROUNDING and (weight := round(Fraction(amount) * self.size * parts / scale)) > 0:
                take(("row", r), *program.rows[r][1:], weight)
        grouped = {at for group in program.groups for at in group}
        rounded = {at for at, amount in left.items() if amount and at and at not in grouped}
        for r, (_, row, least) in enumerate(program.rows):  # what rounding leaves of a variable goes into a row of it
            weight = terms.get(("row", r), 0)
            for at in rounded.intersection(row) if weight else ():
                if left[at] and left[at] % row[at] == 0 and abs(left[at] // row[at]) < NEARLY * weight:
                    take(("row", r), row, least, -left[at] // row[at])
        for at, top in program.top.items():
            if left[at] > 0:  # a row of C - t - ...
                take(("row", top), *program.rows[top][1:], left[at])
        for g, group in enumerate(program.groups):
            free = [left[at] for at in group if fixed.get(at) != 0]
            if most := max(free) if free else min(left[at] for at in group):
                take(("one", g), dict.fromkeys(group, 1), 1, -most)
        for at in [at for at in left if at and left[at]]:
            amount, high = left[at], left[at] > 0
            if fixed.get(at) == 1 - high:
                take(assumed[at], {at: 1}, fixed[at], -amount)
            else:
                take(("high" if high else "low", at), {at: 1}, int(high), -amount)
        if left[0] < 0:
            return _Sum({("low", 0): 1}, 1, 0)
        return _Sum(terms, left[0], side)


class Proven(NamedTuple):
    """A proof, a solution that is the plan, the value proven (inf: no schedule), and what a reader is told of them."""

    proof: Derivations
    solution: dict[int, Fraction]
    value: Fraction | float
    about: list[str]


def prove(plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float) -> Proven:
    """Return a proof of a plan's bound, or of what one linear program says where that has no tree in the time.

    Parameters
    ----------
    plan
        A plan with a schedule, or one that is infeasible, as `verify` accepts it.
    graph, hardware
        What the plan is for.
    time_limit_s
        Of the search for a tree.

    Raises
    ------
    InvalidPlan
        Nothing is known of schedules, the plan is one that these proofs do not know, or no tree says in the time that
        it has no schedule; the message says why.
    """
    if plan.status == "infeasible":
        return _prove_none(plan, graph, hardware, time_limit_s)
    budget = Budget(time_limit_s)
    try:
        check.need(plan.groups is None, _SEVERAL)
        check.need(plan.objective != "throughput", "other formats have latency, pipelines and memory, not throughput")
        read = exact_plan(plan, graph, hardware)
        costs, value = check.Costs(*read[:3], 0, read[3]), read[3][0]
        bound = read[0]["bounds"][0] if plan.bounds else Fraction(0)
        if plan.stages:
            program: Program = StageProgram(costs)
        else:
            program = LatencyProgram(costs, value, time_limit_s / 4) if value else Program(Fraction(1))
    except check.Refuted as problem:
        raise InvalidPlan(f"the plan cannot be certified: {problem}") from None
    goals = [math.ceil(min(value, (bound or value) * (1 - check.ROUNDING)) / program.unit)]
    if value - bound <= check.OPTIMAL * value:  # which may lie above the optimum by the rounding of floats
        goals.insert(0, math.floor(value / program.unit))
    proof = _proof_of(program, list(dict.fromkeys(goals)), budget)
    proven = proof.goal * program.unit
    about = [
        f"rlinit: the {plan.objective} of {plan.graph!r} on {plan.hardware!r} is at least {float(proven)}",
        f"C counts units of {program.unit}. Ops (or parts that stay together) and devices are numbered from 0.",
        "The program is what is taken for granted of every schedule no longer than the plan; nothing else is.",
    ]
    return Proven(proof, proof.program.solution(read[0], value), proven, about)


def _proof_of(program: Program, goals: list[int], budget: Budget) -> Derivations:
    """Return a proof of the first goal for which there is one in the time, or of what the root's program says.

    Of latency, a search that learns comes before the tree, but behind its root.
    """
    root = None
    if isinstance(program, LatencyProgram):
        root = Proof(program.copy(), goals[0], budget, 0)
        if root.run():
            return root
        n, d = len(program.start), program.windows.d
        for goal in goals if n * n * d <= MOST_PAIRS else ():
            search = Learning(program.copy(), goal, budget.share(budget.remaining_s / 2))
            with contextlib.suppress(check.Refuted):
                if search.run():
                    search.clauses.conclude()
                    return search.clauses
    proof = Proof(program, goals[0], budget)
    done = proof.run(*goals[1:])
    return proof if done or root is None or proof.goal >= root.goal else root


def _prove_none(plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float) -> Proven:
    """Return a proof that there is no schedule; its value is inf."""
    try:
        costs = check.costs_of(*exact_plan(plan, graph, hardware)[:3], 0, (Fraction(0),) * 3)
        if isinstance(costs, check.Groups):
            raise check.Refuted(_SEVERAL)
        proof = Proof(PlacementProgram(costs), 1, Budget(time_limit_s))
        check.need(proof.run(), "no tree over memory, devices and order says in the time that there is no schedule")
    except check.Refuted as problem:
        raise InvalidPlan(f"the plan cannot be certified: {problem}") from None
    about = [
        f"rlinit: {plan.objective} of {plan.graph!r} on {plan.hardware!r} has no schedule",
        "Every schedule satisfies the rows with C = 0, for no row is about C. So C >= 1 says that there is none.",
    ]
    return Proven(proof, {}, math.inf, about)
