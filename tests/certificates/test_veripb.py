"""Proofs in VeriPB's format: a checker written from the page on the format accepts them, and they say nothing false."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import derivations, write_veripb
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan
from tests.certificates import veripb_checker, vipr_checker
from tests.certificates.proof_attack import mutated_proofs, veripb_file
from tests.certificates.test_check import GRAPH, MESH, STAGES, can_be_tried
from tests.certificates.veripb_checker import Refused, Row, normal, refutes
from tests.properties import fuzz


def checked(path: Path) -> veripb_checker.Checked:
    """Return what the tests' checker says of a proof and the program beside it."""
    return veripb_checker.check(path.with_suffix(".opb").read_text(), path.read_text())


def written(objective: Any, path: Path) -> float:
    """Write a proof of a small plan's bound, and return the bound."""
    hardware = STAGES if objective in ("pipeline", "memory") else MESH
    return rlinit.schedule(GRAPH, hardware, objective=objective).certify_veripb(path, GRAPH, hardware)


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_random_problems_are_proven_as_in_viprs_format(first: int, tmp_path: Path) -> None:
    """Both formats prove the same whole number, which is no more than brute force's optimum."""
    tried = 0
    for number in range(first, first + 40):
        case = fuzz.draw(number, seed=43)
        if case.options["objective"] == "throughput" or case.large or not can_be_tried(case):
            continue
        plan = rlinit.schedule(case.graph, case.hardware, **case.options)
        if plan.values is None:
            continue
        path = tmp_path / "x.pbp"
        try:
            proven = plan.certify_vipr(tmp_path / "x.vipr", case.graph, case.hardware)
        except InvalidPlan:
            continue
        assert plan.certify_veripb(path, case.graph, case.hardware) == proven, case
        found = checked(path)
        assert found.most is not None
        assert found.least == vipr_checker.check((tmp_path / "x.vipr").read_text()).least <= found.most, case
        best = fuzz.optimum(case)
        assert best is None or proven <= best[0] * (1 + 1e-9), case
        tried += 1
    assert tried > 8


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_mutated_proofs_prove_nothing_false(objective: str, tmp_path: Path) -> None:
    """A word changed, left out or moved is refused, or the proof shows no more than the optimum."""
    written(objective, tmp_path / "x.pbp")
    assert mutated_proofs(veripb_file(tmp_path / "x.pbp"), 400, 15)["refused"] > 300


def test_the_program_of_a_chain_is_what_is_written_down_by_hand(tmp_path: Path) -> None:
    """Ops of 1 and 2 s on one device: C takes two bits, and the tree is one sum of rows."""
    graph = rlinit.Graph.build([("a", {"time_s": 1.0, "out_bytes": 0.0}), ("b", {"time_s": 2.0})], [("a", "b")])
    hardware = rlinit.Hardware.mesh([rlinit.Device("x")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    assert plan.certify_veripb(tmp_path / "x.pbp", graph, hardware) == 3.0
    program = (tmp_path / "x.opb").read_text().splitlines()
    assert program[1].startswith("* rlinit: the latency of ")
    assert "min: +1 C_0 +2 C_1 ;" in program
    assert "+1 x_0_0 = 1 ;" in program
    proof = (tmp_path / "x.pbp").read_text().splitlines()
    assert proof[0] == "pseudo-Boolean proof version 3.0"
    assert proof[2] == "pbc +1 C_0 +2 C_1 >= 3 : subproof"
    rows = int(proof[1].split()[1])  # then come C < 3, the sum of it, of the path and of both ops' places, and C >= 3
    assert proof[3] == f"pol {rows + 1} 1 * {rows} 1 * + 1 1 * + 3 2 * + ;"
    assert proof[4:6] == [f"qed : {rows + 2} ;", "output NONE ;"]
    assert proof[6].startswith(f"conclusion BOUNDS 3 : {rows + 3} 3 : C_0 C_1 ")
    assert checked(tmp_path / "x.pbp").most == 3


def test_every_schedule_is_a_point_of_the_program(tmp_path: Path) -> None:
    """Two ops and two devices: of all bits that the rows leave, the least C is the optimum."""
    graph = rlinit.Graph.build([("a", {"time_s": {"x": 1.0, "y": 2.0}}), ("b", {"time_s": {"x": 2.0, "y": 1.0}})], [])
    hardware = rlinit.Hardware.mesh([rlinit.Device("x"), rlinit.Device("y")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    assert plan.certify_veripb(tmp_path / "x.pbp", graph, hardware) == plan.value == 1.0
    found = checked(tmp_path / "x.pbp")
    names = sorted(found.names)
    values = []
    for bits in itertools.product((0, 1), repeat=len(names)):
        point = dict(zip(names, bits, strict=True))
        point |= {f"~{name}": 1 - bit for name, bit in point.items()}
        if all(sum(a * point[x] for x, a in row.terms.items()) >= row.degree for row in found.rows):
            values.append(sum(a * point[x] for x, a in found.cost.items()))
    assert min(values) == found.least == found.most == 1


def test_lies_planted_by_hand_are_refused() -> None:
    """Bounds raised, sums that prove less, propagation that ends, and solutions that break a row prove nothing."""
    program = "* #variable= 2 #constraint= 1\nmin: +1 aa +1 bb ;\n+1 aa +1 bb >= 1 ;\n"
    proof = (
        "pseudo-Boolean proof version 3.0\nf {f} ;\npbc +1 aa +1 bb >= {goal} : subproof\n{step} ;\nqed : {end} ;\n"
        "output NONE ;\nconclusion BOUNDS {goal} : {row} {most} : {told} ;\nend pseudo-Boolean proof ;\n"
    )
    sound = {"f": 1, "goal": 1, "step": "pol 1 1 * 2 1 * +", "end": 3, "row": 4, "most": 1, "told": "aa ~bb"}
    assert veripb_checker.check(program, proof.format(**sound)).least == 1
    for lie in (
        {"f": 2},
        {"goal": 2},
        {"step": "pol 1 1 *"},
        {"step": "pol 1 1 * 2 -1 * +"},
        {"step": "pol 1 1 * 2 1 *"},
        {"step": "pol 1 1 * 3 1 * +"},
        {"step": "rup >= 1 : 1"},
        {"step": "rup +1 aa >= 1 : ~ 1"},
        {"step": "pol 1 1 * 2 1 *\n+"},
        {"end": -1},  # the page allows it, CakePB refuses it
        {"end": 4},
        {"row": -1},
        {"row": 3},
        {"row": 0},
        {"most": 0},
        {"told": "~aa ~bb"},
        {"told": "aa"},
        {"told": "aa ~bb bb"},
    ):
        with pytest.raises(Refused):
            veripb_checker.check(program, proof.format(**sound | lie))


def test_rows_are_normal_and_propagate_in_turn() -> None:
    """Coefficients are positive over literals; a row whose other terms do not suffice forces a literal."""
    assert normal([(-2, "aa"), (3, "~bb"), (1, "bb")], 1) == Row({"~aa": 2, "~bb": 2}, 2)
    clauses = [normal([(1, "~aa")], 1), normal([(1, "aa"), (1, "bb")], 1), normal([(2, "~bb"), (1, "cc")], 2)]
    assert refutes(clauses)
    assert not refutes(clauses[1:])
    assert not refutes([clauses[1], clauses[0], clauses[2]])


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_problems_of_nine_ops_are_proven_to_the_last_digit(objective: Any, tmp_path: Path) -> None:
    """Decimals on three unlike devices: lower and upper bound are one whole number; splits are by propagation."""
    rng = np.random.default_rng([34, len(objective)])
    ops = [
        (
            f"v{v}",
            {
                "time_s": {d: round(float(rng.uniform(1, 20)), 2) for d in "xyz"},
                "param_bytes": 5.0 + v,
                "out_bytes": 1.0,
            },
        )
        for v in range(9)
    ]
    edges = [(f"v{u}", f"v{v}") for u, v in itertools.combinations(range(9), 2) if rng.random() < 0.25]
    graph = rlinit.Graph.build(ops, edges)
    hardware = rlinit.Hardware.mesh([rlinit.Device(d, cache_bytes=20.0) for d in "xyz"], 4.0)
    plan = rlinit.schedule(graph, hardware, objective=objective)
    proven = plan.certify_veripb(tmp_path / "x.pbp", graph, hardware)
    assert plan.values is not None
    assert proven == pytest.approx(plan.values[0], rel=1e-15)
    found = checked(tmp_path / "x.pbp")
    assert found.least == found.most
    assert "\nrup " in (tmp_path / "x.pbp").read_text() or objective == "latency"  # which one sum of rows proves


def test_huge_and_tiny_numbers_have_as_many_bits_as_they_take(tmp_path: Path) -> None:
    """Seconds of 1e-9 beside 1e6: their unit makes C a number of some 50 bits, and the value is exact."""
    graph = rlinit.Graph.build([("a", {"time_s": 1e-9, "out_bytes": 0.0}), ("b", {"time_s": 1e6})], [("a", "b")])
    hardware = rlinit.Hardware.mesh([rlinit.Device("x"), rlinit.Device("y")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    plan.certify_veripb(tmp_path / "x.pbp", graph, hardware)
    assert checked(tmp_path / "x.pbp").least == 10**15 + 1


def test_what_cannot_be_written_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ending, a plan without a schedule, and files that would be too long leave nothing behind."""
    plan = rlinit.schedule(GRAPH, MESH, objective="latency")
    with pytest.raises(InvalidPlan, match=r"does not end in \.pbp"):
        plan.certify_veripb(tmp_path / "x.opb", GRAPH, MESH)
    with pytest.raises(InvalidPlan):
        dataclasses.replace(plan, objective="throughput").certify_veripb(tmp_path / "x.pbp", GRAPH, MESH)
    monkeypatch.setattr(derivations, "MAX_BYTES", 2000)
    with pytest.raises(InvalidPlan, match="more than 2,000 bytes"):
        plan.certify_veripb(tmp_path / "x.pbp", GRAPH, MESH)
    assert not list(tmp_path.iterdir())


def test_time_that_ends_leaves_a_weaker_bound(tmp_path: Path) -> None:
    """Without time for a tree the file still proves what one linear program says, or 0."""
    plan = rlinit.schedule(GRAPH, MESH, objective="latency")
    proven = write_veripb(tmp_path / "x.pbp", plan, GRAPH, MESH, 1e-6)
    found = checked(tmp_path / "x.pbp")
    assert plan.value is not None
    assert 0 <= proven <= plan.value
    assert found.most is not None
    assert Fraction(found.least) <= found.most


def test_the_command_line_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--certify-veripb`` says what is proven; a path with another ending is refused in one line."""
    GRAPH.save(tmp_path / "g.json")
    STAGES.save(tmp_path / "h.json")
    command = ["schedule", str(tmp_path / "g.json"), "--hw", str(tmp_path / "h.json"), "--certify-veripb"]
    assert main([*command, str(tmp_path / "x.pbp")]) == 0
    assert "x.pbp proves a bound of 3.562 s; the plan's is 3.562 s" in " ".join(capsys.readouterr().err.split())
    assert checked(tmp_path / "x.pbp").most is not None
    assert main([*command, str(tmp_path / "x.opb")]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "--certify-veripb" in told.err
