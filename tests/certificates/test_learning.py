"""Proofs that learn clauses: every schedule satisfies their programs, and what they prove is brute force's optimum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.certificates.latency_program import LatencyProgram
from rlinit.certificates.learning import Learning
from rlinit.certificates.proof import Proven
from rlinit.certificates.veripb import veripb_texts
from rlinit.certificates.vipr import vipr_lines
from tests.certificates import veripb_checker, vipr_checker
from tests.certificates.test_check import costs_of
from tests.properties import fuzz


def drawn(number: int) -> fuzz.Case:
    """Return a problem of up to five ops on two devices: ties, no time, colocated and forbidden ops, links."""
    rng = np.random.default_rng([number, 52])
    n, digits, few = int(rng.integers(3, 6)), 2 * (number % 2), number % 3 == 0

    def amount() -> float:
        seconds = float(rng.choice([1.0, 2.0, 3.0])) if few else round(float(rng.uniform(0.5, 9.5)), digits)
        return 0.0 if rng.random() < 0.15 else seconds

    def row() -> dict[str, Any]:
        found: dict[str, Any] = {"time_s": {"x": amount(), "y": amount()}, "out_bytes": amount()}
        if rng.random() < 0.15:
            found["forbidden"] = [str(rng.choice(["x", "y"]))]
        elif rng.random() < 0.25:
            found["colocate"] = "group"
        return found

    ops = [(f"v{v}", row()) for v in range(n)]
    edges = [(f"v{u}", f"v{v}") for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.3]
    rates = rng.choice([0.5, 1.0, 4.0], (2, 2)) if number % 4 else np.ones((2, 2))
    delays = np.full((2, 2), float(rng.choice([0.0, 0.5])))
    hardware = rlinit.Hardware((rlinit.Device("x"), rlinit.Device("y")), rates, delays, "drawn")
    options = {"objective": "latency", "transfers": "parallel", "resident": "tensors"}
    return fuzz.Case(number, rlinit.Graph.build(ops, edges), hardware, options)


def schedules(
    program: LatencyProgram, rng: np.random.Generator
) -> Iterator[tuple[list[int], list[int], list[int], int]]:
    """Yield devices, starts, places in an order and length of schedules within the program's, some of them idle."""
    windows, n = program.windows, len(program.start)
    allowed = [[i for i in range(windows.d) if windows.time[v][i] is not None] for v in range(n)]
    orders = [
        order
        for order in itertools.permutations(range(n))
        if all(order.index(u) < order.index(v) for v, before in enumerate(windows.before) for u, _ in before)
    ]
    for on in itertools.product(*allowed):
        if any(len({on[v] for v in group}) > 1 for group in windows.groups):
            continue
        for order in orders:
            for idle in (False, True, True):
                start, free, end = [0] * n, [0] * windows.d, 0
                for v in order:
                    ready = [start[u] + windows.time[u][on[u]] + move[on[u]][on[v]] for u, move in windows.before[v]]
                    wait = int(rng.integers(0, 1 + program.longest // 4)) if idle and rng.random() < 0.5 else 0
                    start[v] = max([free[on[v]], *ready]) + wait
                    free[on[v]] = start[v] + windows.time[v][on[v]]
                    end = max(end, free[on[v]])
                if end <= program.longest:
                    yield list(on), start, [order.index(v) for v in range(n)], end


def points(program: LatencyProgram, number: int) -> Iterator[list[int]]:
    """Yield the variables of schedules, each by what it is defined to say."""
    rng = np.random.default_rng(number)
    for on, start, place, end in schedules(program, rng):
        point = [0] * len(program.names)
        point[0] = end
        for (v, i), at in program.share.items():
            point[at] = int(on[v] == i)
        for v, at in enumerate(program.start):
            point[at] = start[v]
        for (u, v, _), at in program.orders.items():
            point[at] = int(place[u] < place[v])
        for (v, least), at in program.levels.items():
            point[at] = int(start[v] >= least)
        yield point


def name_rows_at_random(program: LatencyProgram, rng: np.random.Generator) -> None:
    """Add rows of the kinds that a search adds, whether one would or not."""
    n, d = len(program.start), program.windows.d
    for _ in range(20):
        v = int(rng.integers(n))
        program.level(v, int(rng.integers(1, 2 * program.longest + 2)))
        i, (start, end) = int(rng.integers(d)), sorted(rng.integers(0, program.longest + 2, 2).tolist())
        ops = [w for w in range(n) if (w, i) in program.share and program.windows.time[w][i] and rng.random() < 0.7]
        most = [min(program.windows.time[w][i], end - start) for w in ops]
        parts = [(w, int(rng.integers(1, m + 1))) for w, m in zip(ops, most, strict=True) if m]
        if parts:
            program.energy(i, start, end, tuple(parts))
        for v, before in enumerate(program.windows.before):
            for u, move in before:
                a, b = (
                    [j for j in program.state.devices[w] if rng.random() < 0.6] or program.state.devices[w]
                    for w in (u, v)
                )
                least = min(program.windows.time[u][j] + move[j][k] for j in a for k in b)
                program.arc(u, v, least, *(sum(1 << j for j in on) for on in (a, b)))


def best_of(program: LatencyProgram, number: int, goal: int) -> Iterator[dict[int, Fraction]]:
    """Yield the variables that are not 0 of schedules of a length, in which devices that are alike are in turn."""
    for point in points(program, number):
        rows = (sum(amount * point[at] for at, amount in row.items()) >= least for _, row, least in program.rows)
        if point[0] == goal and all(rows):
            yield {at: Fraction(value) for at, value in enumerate(point) if value}


def assert_accepted(search: Learning, solution: dict[int, Fraction]) -> None:
    """Let readers of both formats find that a proof says all of a goal, and that a solution is that good."""
    proof, goal = search.clauses, search.clauses.goal
    found = vipr_checker.check("\n".join(vipr_lines(proof, ["a comment"], solution)) + "\n")
    assert (found.least, found.most) == (Fraction(goal), str(goal))
    other = veripb_checker.check(*veripb_texts(Proven(proof, solution, Fraction(goal), ["a comment"])))
    assert (other.least, other.most) == (goal, goal)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_every_schedule_satisfies_the_rows_of_a_proof(first: int) -> None:
    """Whatever devices, orders and idle times: rows hold, and the least length is what is proven, in both formats.

    Left out are rows of devices that are alike, which hold of one of the schedules in which they change places.
    """
    reached = 0
    for number in range(first, first + 10):
        case = drawn(number)
        best = fuzz.optimum(case)
        if not best or not best[0]:
            continue
        start = LatencyProgram(costs_of(case, 0, ()), Fraction(best[0]) * Fraction(3, 2), 5.0)
        goal = min(end for _, _, _, end in schedules(start, np.random.default_rng(0)))
        assert float(goal / start.windows.units) == pytest.approx(best[0], rel=1e-9), number
        above = Learning(start.copy(), goal + 1, Budget(10.0))
        assert not above.run(), number
        search = Learning(start.copy(), goal, Budget(10.0))
        if search.run():
            search.clauses.conclude()
            reached += 1
            assert_accepted(search, next(best_of(search.clauses.program, number, goal)))
        program = search.clauses.program
        name_rows_at_random(program, np.random.default_rng(number))
        rows = [(name, row, least) for name, row, least in program.rows if not name.startswith("alike")]
        rows += [("one", dict.fromkeys(group, 1), 1) for group in program.groups]
        matrix = np.zeros((len(rows), len(program.names)), np.int64)
        for r, (_, row, _) in enumerate(rows):
            matrix[r, list(row)] = list(row.values())
        slack = matrix @ np.array(list(points(program, number))).T - np.array([least for _, _, least in rows])[:, None]
        assert slack.min() >= 0, (number, rows[int(slack.min(axis=1).argmin())])
    assert reached >= 8


def test_work_may_end_after_all_schedules_do() -> None:
    """An op may be so slow on one device that a clause of work says of its start what no schedule comes near."""
    rng = np.random.default_rng([23, 5])
    ops = [
        (
            f"v{v}",
            {
                "time_s": {"x": float(rng.integers(1, 6)), "y": float(rng.integers(1, 30))},
                "out_bytes": float(rng.integers(0, 4)),
            },
        )
        for v in range(12)
    ]
    edges = [(f"v{u}", f"v{v}") for u, v in itertools.combinations(range(12), 2) if rng.random() < 1.5 / 12]
    hardware = rlinit.Hardware((rlinit.Device("x"), rlinit.Device("y")), np.full((2, 2), 2.0), np.zeros((2, 2)), "pair")
    case = fuzz.Case(23, rlinit.Graph.build(ops, edges), hardware, {"objective": "latency", "transfers": "parallel"})
    program = LatencyProgram(costs_of(case, 0, (Fraction(0),)), Fraction(31), 1.0)
    for seconds, refuted in ((31, False), (30, True)):  # 30 is the optimum
        search = Learning(program.copy(), int(seconds / program.unit), Budget(60.0))
        assert search.run() == refuted
    search.clauses.conclude()
    proven = Proven(search.clauses, {}, Fraction(30), [])
    assert vipr_checker.check("\n".join(vipr_lines(proven.proof, [], {}))).least == search.clauses.goal
