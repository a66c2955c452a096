"""Proofs by clauses and by loads in cases: what they prove is brute force's optimum, and no change of them more."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.certificates import check, writing
from rlinit.certificates.lags import BetweenOps
from rlinit.certificates.latency_program import LatencyProgram
from rlinit.graph import Graph
from tests.certificates.test_check import costs_of
from tests.certificates.test_learning import drawn, schedules
from tests.properties import fuzz

BELOW = 1 - check.ROUNDING


def proofs_of(case: fuzz.Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[check.Costs, Fraction, Any]]:
    """Yield the costs and optimum of a problem, and proofs of the two kinds, read as files are."""
    monkeypatch.setattr(writing, "tree_proof", lambda *_: None)
    best = fuzz.optimum(case)
    if best and best[0]:
        value, costs = Fraction(best[0]), costs_of(case, 0, ())
        for wanted in (value * BELOW, value * Fraction(101, 100)):
            between = partial(BetweenOps, case.graph, case.hardware)
            for proof in writing._latency_proofs(costs, wanted, value * Fraction(3, 2), between, Budget(20.0)):
                if proof is not None:
                    read = check.parse(json.dumps(proof), "rlinit-certificate", "row")
                    assert wanted < value, case
                    yield costs, value, read


def accepted(proof: Any, costs: check.Costs) -> Fraction:
    """Return what the checker says that a proof proves, 0 where it refuses it."""
    try:
        return check.prove(proof, costs)
    except (check.Refuted, *check.MALFORMED):
        return Fraction(0)


def changed(proof: Any, rng: np.random.Generator) -> Any:
    """Return a proof with a literal, step, clause, node or number changed or gone."""
    bad = copy.deepcopy(proof)
    inner = bad.get("proof", bad)
    rows = inner["clauses" if "clauses" in inner else "cases"]
    if "threshold" in bad and rng.random() < 0.2:
        bad["threshold"] = str(Fraction(bad["threshold"]) * Fraction(int(rng.integers(50, 300)), 100))
    elif rng.random() < 0.2 or not rows:
        del rows[int(rng.integers(len(rows))) :][: int(rng.integers(1, 3))]
    else:
        spot: Any = rows
        while True:
            keys = list(spot) if isinstance(spot, dict) else range(len(spot))
            if not keys:
                spot.append(Fraction(0)) if isinstance(spot, list) else None
                break
            key = keys[int(rng.integers(len(keys)))]
            if isinstance(spot[key], (dict, list)) and rng.random() < 0.9:
                spot = spot[key]
                continue
            if isinstance(spot, list) and rng.random() < 0.3:
                del spot[key]
            elif isinstance(spot[key], str):
                words = ["from", "until", "on", "off", "first", "arc", "end", "order", "work", "0", "1", "2/3"]
                spot[key] = str(rng.choice(words))
            else:
                spot[key] = Fraction(int(rng.integers(-1, 8)))
            break
    return bad


def other_times(case: fuzz.Case, rng: np.random.Generator) -> fuzz.Case:
    """Return a problem with one time changed."""
    data = copy.deepcopy(case.graph.to_dict())
    times = data["ops"][int(rng.integers(len(data["ops"])))]["time_s"]
    name = str(rng.choice(sorted(times)))
    times[name] = max(0.0, times[name] + float(rng.choice([-2.0, -1.0, -0.5, 1.0])))
    return dataclasses.replace(case, graph=Graph.from_dict(data))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_changed_proofs_prove_nothing_false(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum is proven, and no more by changed literals, steps, clauses, nodes or problems."""
    kinds = set()
    for number in range(first, first + 20):
        case, rng = drawn(number), np.random.default_rng(number)
        for costs, value, proof in proofs_of(case, monkeypatch):
            kinds.add(proof["kind"])
            most = value * (1 + 3 * check.ROUNDING)
            assert value * BELOW <= check.prove(proof, costs) <= most, number
            for _ in range(60):
                assert accepted(changed(proof, rng), costs) <= most, number
            for _ in range(3):
                other = other_times(case, rng)
                best = fuzz.optimum(other)
                bound = accepted(proof, costs_of(other, 0, ()))
                assert best is None or bound <= Fraction(best[0]) * (1 + 3 * check.ROUNDING), number
    assert kinds == {"clauses", "quantum"}


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_steps_keep_every_schedule(first: int) -> None:
    """Whatever is assumed that is true of a schedule, no step in whatever order contradicts it."""
    tried = 0
    for number in range(first, first + 20):
        rng, best = np.random.default_rng([number, 3]), fuzz.optimum(case := drawn(number))
        if not best or not best[0]:
            continue
        program = LatencyProgram(costs_of(case, 0, ()), Fraction(best[0]) * Fraction(5, 4), 1.0)
        windows, n = program.windows, len(program.start)
        state = windows.root.copy()
        assert windows.settle(state)
        root = check.Bounds(windows, state)
        found = list(schedules(program, rng))
        for at in rng.integers(0, len(found), 30).tolist():
            on, start, place, _ = found[at]
            case_of = root.case([])
            for _ in range(40):
                u, v, i = int(rng.integers(n)), int(rng.integers(n)), int(rng.integers(windows.d))
                begin, end = sorted(rng.integers(0, program.longest + 2, 2).tolist())
                way = int(rng.integers(9))
                if way == 0:
                    case_of.add("from", v, start[v] - int(rng.integers(0, 3)))
                elif way == 1:
                    case_of.add("until", v, start[v] + int(rng.integers(0, 3)))
                elif way == 2:
                    case_of.add(*(("on", v, on[v]) if on[v] == i else ("off", v, i)))
                elif way == 3 and u != v:
                    case_of.add("first", *((u, v) if place[u] < place[v] else (v, u)))
                elif way == 4:
                    case_of.end(v)
                elif way == 5 and windows.before[v]:
                    case_of.arc(windows.before[v][int(rng.integers(len(windows.before[v])))][0], v)
                elif way == 6 and u != v:
                    case_of.order(u, v)
                elif begin < end:
                    case_of.work(i, begin, end)
                for w in range(n):
                    assert case_of.low[w] <= start[w] <= case_of.high[w], (number, way)
                    assert on[w] in case_of.devices[w], (number, way)
                assert not case_of.empty, (number, way)
                for a, b in case_of.first:
                    assert on[a] != on[b] or start[a] + windows.time[a][on[a]] <= start[b], (number, way)
            tried += 1
    assert tried > 100


def test_what_names_an_op_twice_proves_nothing() -> None:
    """An op is not before itself, a device does no work backwards, and a clause is not its own reason."""
    costs = costs_of(drawn(1), 0, ())
    for clauses in (
        [[[["first", 1, 1]], []], [[], [0]]],
        [[[["first", -1, 1]], []], [[], [0]]],
        [[[], [["order", 1, 1]]]],
        [[[], [["work", 0, 5, 2]]]],
        [[[], [["work", 0, 5, 5]]]],
        [[[], [0]]],
        [[[], [-1]]],
        [],
    ):
        text = json.dumps({"kind": "clauses", "threshold": "1000", "clauses": clauses})
        assert accepted(check.parse(text, "rlinit-certificate", "row"), costs) == 0
