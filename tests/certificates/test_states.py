"""The compiled checker of proofs by states says what the first says, and no proof of theirs is false."""

from __future__ import annotations

import ast
import contextlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import certificate_of, check, states
from rlinit.certificates.writing import exact_plan
from rlinit.cli.main import main
from rlinit.plan import Objective
from tests.certificates.test_check import GRAPH, STAGES, can_be_tried, costs_of
from tests.properties import fuzz
from tests.properties.brute_force import best_stages


def prove(proof: Any, costs: check.Costs, reached: Any) -> Fraction | None:
    """Return the bound of a proof when a checker's states are counted; None where it is refused."""
    costs.reached = reached
    read = check.parse(json.dumps(proof), "rlinit-certificate", "proof")
    with contextlib.suppress(check.Refuted, *check.MALFORMED):
        return check.prove(read, costs)
    return None


@pytest.mark.parametrize("first", range(0, 300, 100))
@pytest.mark.parametrize(("few", "vectors"), [(0, 256), (20, 0)])
def test_both_checkers_count_the_same_sets(few: int, vectors: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below, at and above the optimum of random problems of all scales, and when a proof is mutated, both agree."""
    monkeypatch.setattr(check, "FEW", few)
    monkeypatch.setattr(check, "MOST_VECTORS", vectors)
    rng, tried, refused = np.random.default_rng(first), 0, 0
    for number in range(first, first + 100):
        case = fuzz.draw(number, seed=31)
        if case.options["objective"] not in ("pipeline", "memory") or not can_be_tried(case):
            continue
        values = tuple(map(Fraction, fuzz.optimum(case) or ()))
        for level, value in enumerate(values):
            costs = costs_of(case, level, tuple(each * (1 + check.ROUNDING) for each in values))
            for factor in (Fraction(1, 2), 1 - check.ROUNDING, 1, 1 + check.ROUNDING, Fraction(3, 2)):
                found = check.reached_states(costs, value * factor)
                assert states.reached_states(costs, value * factor) == found, (case, level, factor)
                proof: dict[str, Any] = {"kind": "states", "threshold": str(value * factor), "reached": found or [1]}
                if rng.random() < 0.5:
                    proof["reached"][int(rng.integers(len(proof["reached"])))] += int(rng.choice([-1, 1]))
                elif rng.random() < 0.5:
                    proof["threshold"] = str(value * factor * Fraction(int(rng.integers(5, 20)), 10))
                bound = prove(proof, costs, check.reached_states)
                assert prove(proof, costs, states.reached_states) == bound
                assert bound is None or bound <= value * (1 + 3 * check.ROUNDING) + Fraction(1, 10**30)
                refused += bound is None
                tried += 1
    assert tried > 100
    assert tried > refused > 20


@pytest.mark.parametrize("seed", range(30))
def test_tensors_read_over_many_stages_enter_only_where_they_are_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor has readers in several stages: one that a stage passes by costs it nothing."""
    monkeypatch.setattr(check, "FEW", 0)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 10))
    ops = [(f"op{v}", {"time_s": float(rng.integers(0, 4)), "out_bytes": float(rng.integers(1, 4))}) for v in range(n)]
    edges = [(f"op{u}", f"op{v}") for u in range(n) for v in range(u + 1, n) if v == u + 1 or rng.random() < 0.4]
    graph = rlinit.Graph.build(ops, edges)
    hardware = rlinit.Hardware.pipeline(4, bandwidth=1.0)
    plan = rlinit.schedule(graph, hardware, objective="pipeline")
    written, raw_graph, raw_hardware, values = exact_plan(plan, graph, hardware)
    costs = check.Costs(written, raw_graph, raw_hardware, 0, values)
    for threshold in range(1, 2 + int(values[0])):
        assert states.reached_states(costs, Fraction(threshold)) == check.reached_states(costs, Fraction(threshold))


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_looks_at_the_clock_change_no_counts(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that stop after every set, as they do after many pairs, count the same; too many pairs end the search."""
    case = next(
        case
        for case in (fuzz.draw(number, seed=31) for number in range(1000))
        if case.options["objective"] == objective and can_be_tried(case) and (fuzz.optimum(case) or (0,))[0] > 0
    )
    values = tuple(map(Fraction, fuzz.optimum(case) or ()))
    costs, below, above = costs_of(case, 0, values), values[0] * (1 - check.ROUNDING), values[0] * 2
    monkeypatch.setattr(states, "_CHUNK", 0)
    for kernel in ("_extend", "_extend_memory"):
        monkeypatch.setattr(states, kernel, getattr(states, kernel).py_func)
    for threshold in (below, above):
        assert states.reached_states(costs, threshold) == check.reached_states(costs, threshold)
    monkeypatch.setattr(states, "MOST_PAIRS", 0)
    with pytest.raises(check.TooLong, match="more than 0 pairs"):
        states.reached_states(costs, above)


@pytest.mark.parametrize("bits", [3, 39, 40, 41, 100, 500])
def test_numbers_of_any_length_keep_their_sign(bits: int) -> None:
    """Sums of limbs without carries have the sign of the sum of the numbers, at 0 and next to it as well."""
    graph = check.Graph({"ops": [{"name": "a"}], "edges": []})
    rng = np.random.default_rng(bits)
    listing = states.Listing(check.Lattice(graph, check.merged(graph)), [[1 << bits]], [1], [])
    for _ in range(50):
        terms = [int(rng.integers(-1, 2)) * (int.from_bytes(rng.bytes(64)) % (1 << bits)) for _ in range(9)]
        for last in (-sum(terms), 1 - sum(terms), -1 - sum(terms), 0):
            total = listing.numbers([*terms, last]).sum(axis=0) if abs(last) < 1 << bits else None
            if total is not None:
                wanted = (sum(terms) + last > 0) - (sum(terms) + last < 0)
                assert states.sign(total) == wanted


def test_closed_sets_are_listed_once_each() -> None:
    """The kernel lists the same sets as the first checker, with the same sums, whatever the order of merged parts."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        n = int(rng.integers(1, 9))
        edges = [(f"v{i}", f"v{j}") for j in range(n) for i in range(j) if rng.random() < 0.3]
        ops: list[Any] = [(f"v{i}", {"time_s": 1.0, "out_bytes": 1.0}) for i in range(n)]
        for v in rng.permutation(n)[: int(rng.integers(0, 4))] if n > 3 else []:
            ops[int(v)][1]["colocate"] = "together"
        graph = rlinit.Graph.build(ops, edges)
        read = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "graph"))
        lattice = check.Lattice(read, check.merged(read))
        weights = [int(each) for each in rng.integers(0, 5, len(lattice.parts))]
        listing = states.Listing(lattice, [weights], [3], [])
        sums = sorted(row[0][0] for row in lattice.sets(weights).values())
        assert listing.whole(listing.sums[:, 0]).tolist() == sums
        assert len({row.tobytes() for row in listing.bits}) == len(sums)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_weightless_ends_are_joined_and_the_optimum_stays(objective: Objective, tight: bool) -> None:
    """Of random graphs with many ops that weigh nothing, the joined parts prove no less and no more than all ops do."""
    rng, joined = np.random.default_rng(8), 0
    for _ in range(60):
        n = int(rng.integers(2, 8))
        light = rng.random(n) < 0.6
        bytes_of = rng.integers(0, 3, n) * (~light if objective == "memory" or rng.random() < 0.5 else 1)
        ops: list[Any] = [
            (
                f"v{v}",
                {
                    "time_s": 0.0 if light[v] else float(rng.integers(1, 5)),
                    "param_bytes": float(bytes_of[v]),
                    "out_bytes": float(rng.integers(0, 4)),
                },
            )
            for v in range(n)
        ]
        if rng.random() < 0.3:
            ops[-1][1]["colocate"] = ops[-2][1]["colocate"] = "together"
        edges = [(f"v{u}", f"v{v}") for v in range(n) for u in range(v) if rng.random() < 0.35]
        graph = rlinit.Graph.build(ops, edges)
        room = float(max(1, bytes_of.sum() // 2)) if tight else math.inf
        hardware = rlinit.Hardware.pipeline(3, memory=2 * room, cache=room, bandwidth=2.0)
        best = best_stages(graph, hardware, objective, activations=False)
        if best is None:
            continue
        plan = rlinit.schedule(graph, hardware, objective=objective)
        written, raw_graph, raw_hardware, values = exact_plan(plan, graph, hardware)
        for level, value in enumerate(values):
            costs = check.Costs(written, raw_graph, raw_hardware, level, values)
            assert value == Fraction(best[level])
            joined += len(check.absorbed(costs)) < len(check.merged(raw_graph))
            assert check.reached_states(costs, value) is not None
            assert check.reached_states(costs, value + Fraction(1, 64)) is None
    assert joined > 20


def test_verify_says_which_checker_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its budget of pairs the first checker says so and proves nothing, and the compiled one takes over."""
    plan = rlinit.schedule(GRAPH, STAGES, objective="pipeline")
    certificate = certificate_of(plan, GRAPH, STAGES)
    value = Fraction(plan.values[0]) if plan.values else Fraction(0)
    written = json.loads(json.dumps(plan.to_dict()))
    graph = check.Graph(check.parse(json.dumps(GRAPH.to_dict()), "rlinit-graph", "graph"))
    hardware = check.Hardware(check.parse(json.dumps(STAGES.to_dict()), "rlinit-hardware", "hardware"))
    costs = check.Costs(check.parse(json.dumps(written), "rlinit-plan", "plan"), graph, hardware, 0, (value,))
    reached = check.reached_states(costs, value)
    certificate["levels"] = [{"kind": "states", "threshold": str(value), "reached": reached}]
    plan.save(tmp_path / "plan.json")
    GRAPH.save(tmp_path / "graph.json")
    STAGES.save(tmp_path / "hardware.json")
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    paths = [str(tmp_path / f"{name}.json") for name in ("plan", "graph", "hardware", "certificate")]
    assert main(["verify", *paths]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact) ")
    monkeypatch.setattr(states.Search.__init__, "__defaults__", (1,))
    assert main(["verify", *paths]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact, by the compiled checker) value 3.5625; bound 3.5625")
    monkeypatch.setattr(check, "MOST_PAIRS", 1)
    assert check.main(paths) == 0
    told = capsys.readouterr().out
    assert told.startswith("VERIFIED (value only)")
    assert "more than 1 pairs" in told
    certificate["levels"][0]["reached"][0] += 1
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    assert main(["verify", *paths]) == 1
    assert capsys.readouterr().out.startswith("REFUTED: the proof counts")


def test_the_compiled_checker_shares_no_code_with_solvers() -> None:
    """It imports the first checker, array types and the compiler's wrapper, and nothing else of the package."""
    found = {
        node.module
        for node in ast.walk(ast.parse(Path(states.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rlinit")
    }
    assert found == {"rlinit.arrays", "rlinit.certificates", "rlinit.kernels.compiled"}


def test_sums_of_limbs_are_sorted_like_the_numbers_they_stand_for() -> None:
    """Limbs that were added without carrying, ties and negative numbers among them."""
    rng = np.random.default_rng(0)
    values = [[int(part) for part in row] for row in rng.integers(-(2**60), 2**60, (200, 3)).astype(object) << 15]
    values += [[0, 0, 0], *values[:20]]
    tops = 2
    limbs = np.array(
        [
            sum(
                np.array([value >> 40 * at & (-1 if at == tops else (1 << 40) - 1) for at in range(3)]) for value in row
            )
            for row in values
        ],
        np.int64,
    )
    sums = [sum(row) for row in values]
    order = states._in_order(limbs).tolist()
    assert order == sorted(range(len(sums)), key=sums.__getitem__)
