"""Proofs in VIPR's format: a checker written from its specification accepts them, and they say nothing false."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.certificates import check, derivations, write_vipr
from rlinit.certificates.latency_program import LatencyProgram
from rlinit.certificates.programs import Program, StageProgram, exact_plan
from rlinit.certificates.proof import Proof
from rlinit.certificates.vipr import vipr_lines
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan
from rlinit.plan import Objective
from tests.certificates import vipr_checker
from tests.certificates.proof_attack import drawn, mutated_proofs, vipr_file
from tests.certificates.test_check import GRAPH, MESH, STAGES, can_be_tried, costs_of
from tests.draws import draws
from tests.properties import fuzz


def text_of(proof: Proof) -> str:
    """Return the file of a proof."""
    return "\n".join(vipr_lines(proof, ["a comment"], {})) + "\n"


@pytest.mark.parametrize("first", range(0, draws(240), 80))
def test_the_optimum_is_proven_and_nothing_above(first: int) -> None:
    """Programs of random problems prove brute force's optimum where they know all of a cost, and never more."""
    tried = reached = 0
    for number in range(first, first + 80):
        case = fuzz.draw(number, seed=41)
        objective = case.options["objective"]
        if objective == "throughput" or not can_be_tried(case):
            continue
        best = fuzz.optimum(case)
        if not best or not best[0]:
            continue
        costs, value = costs_of(case, 0, ()), Fraction(best[0])
        program: Program = LatencyProgram(costs, 2 * value, 5.0) if objective == "latency" else StageProgram(costs)
        for goal in (value * (1 - check.ROUNDING), value * (1 + 3 * check.ROUNDING) + program.unit / 2):
            proof = Proof(program, math.ceil(goal / program.unit), Budget(5.0))
            done = proof.run()
            proven = vipr_checker.check(text_of(proof)).least * program.unit
            assert proven == proof.goal * program.unit <= value * (1 + 2 * check.ROUNDING), case
            assert not done or goal <= value, case
            reached += done
        tried += 1
    assert tried > 20
    assert reached > 0.9 * tried


def written(objective: Any, tmp_path: Path) -> tuple[str, float, float]:
    """Return a file, the bound that it proves, and the value of its plan."""
    hardware = STAGES if objective in ("pipeline", "memory") else MESH
    plan = rlinit.schedule(GRAPH, hardware, objective=objective)
    proven = plan.certify_vipr(tmp_path / "x.vipr", GRAPH, hardware)
    assert plan.values is not None
    return (tmp_path / "x.vipr").read_text(), proven, plan.values[0]


def test_memory_of_stages_is_proven_where_no_path_links_them(tmp_path: Path) -> None:
    """Bytes of stages take no time, so that links that are missing stand in no proof's way."""
    devices = tuple(dataclasses.replace(device, io_bandwidth=None) for device in STAGES.devices)
    hardware = dataclasses.replace(STAGES, devices=devices, bandwidth=np.zeros((2, 2)))
    plan = rlinit.schedule(GRAPH, hardware, objective="memory")
    assert plan.values is not None
    assert plan.certify_vipr(tmp_path / "x.vipr", GRAPH, hardware) == pytest.approx(plan.values[0])


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_plans_are_proven_up_to_rounding(objective: str, tmp_path: Path) -> None:
    """The bound of a small optimal plan is proven; the program and the bound are what the file says."""
    text, proven, value = written(objective, tmp_path)
    assert text.startswith(f"% rlinit: the {objective} of 'diamond' on ")
    assert proven == pytest.approx(value, rel=1e-8)
    assert vipr_checker.check(text).names[0] == "C"


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_mutated_proofs_prove_nothing_false(objective: str, tmp_path: Path) -> None:
    """A word changed, left out or moved behind the program is refused, or proves no more than the optimum."""
    written(objective, tmp_path)
    assert mutated_proofs(vipr_file(tmp_path / "x.vipr"), 600, 15)["refused"] > 300


def test_lies_planted_by_hand_are_refused() -> None:
    """Bounds raised, assumptions left open, gaps in a split, wrong signs and fractions rounded prove nothing."""
    head = "VER 1.0\nVAR 2 x y INT 1 0 OBJ min 1 0 1 CON 2 1 low G 0 1 0 1 row G 1/2 1 0 1"
    cases = {  # where viprchk is stricter than the specification, so is this
        "RTP range 0.5 inf SOL 0\nDER 1\na G 1/2 OBJ { lin 1 1 1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 2/4 OBJ { lin 1 1 1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 2\na G 0 1 0 1 { lin 1 0 1 } -1 b G 1/2 OBJ { lin 1 1 1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 2\na G 0 1 0 1 { lin 1 0 1 } -1\nb G 1/2 OBJ { lin 1 1 1 } -1": True,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 OBJ { lin 1 1 1 } -1": True,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 OBJ\n{ lin 1 1 1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 1\n%a G 1/2 OBJ { lin 1 1 1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 OBJ { lin 1 1 1 } 0": False,
        "RTP range 1 inf SOL 0\nDER 1\na G 1 OBJ { rnd 1 1 1 } -1": True,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 1 0 1 { lin 1 1 1 } -1": False,  # as coefficients, viprchk refuses it
        "RTP range 1 inf SOL 0\nDER 1\na G 1 OBJ { lin 1 1 1 } -1": False,
        "RTP range 1 inf SOL 0\nDER 1\na G 1 OBJ { asm } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 OBJ { lin 1 1 -1 } -1": False,
        "RTP range 1/2 inf SOL 0\nDER 1\na G 1/2 OBJ { lin 1 2 1 } -1": False,
        "RTP range 1 inf SOL 0\nDER 1\na G 1 OBJ { rnd 1 1 1/2 } -1": False,
    }
    split = "RTP range 1 inf SOL 0\nDER 4\na L {0} 1 {2} 1 {{ asm }} -1\nb G 0 0 {{ lin 2 1 1 2 -1 }} -1\n"
    split += "c G {1} 1 {2} 1 {{ asm }} -1\nd G 1 OBJ {{ uns 3 2 4 4 }} -1"
    cases |= {split.format(*numbers): False for numbers in ((0, 2, 0), (0, 1, 1), (1, 2, 0))}
    for tail, sound in cases.items():
        if sound:
            vipr_checker.check(f"{head} {tail}")
        else:
            with pytest.raises(vipr_checker.Refused):
                vipr_checker.check(f"{head} {tail}")


def test_a_program_holds_for_every_schedule_of_a_chain() -> None:
    """Each order of three ops on one device satisfies the rows with its own starts, and its makespan is C."""
    graph = rlinit.Graph.build([(name, {"time_s": 1.0 + at}) for at, name in enumerate("abc")], [])
    hardware = rlinit.Hardware.mesh([rlinit.Device("x")], 1.0)
    costs = costs_of(fuzz.Case(0, graph, hardware, {"objective": "latency"}), 0, ())
    program = LatencyProgram(costs, Fraction(6), 5.0)
    for u, v in itertools.combinations(range(3), 2):
        program.order_of(u, v, 0)
    for order in itertools.permutations(range(3)):
        at, point = 0, dict.fromkeys(range(len(program.names)), 0)
        for v in order:
            point[program.start[v]] = at
            point[program.share[v, 0]] = 1
            at += program.windows.time[v][0]
        for (u, v, _), y in program.orders.items():
            point[y] = int(order.index(u) < order.index(v))
        point[0] = at
        for name, row, least in program.rows:
            assert sum(amount * point[j] for j, amount in row.items()) >= least, (order, name)


@pytest.mark.parametrize("number", range(6))
def test_problems_of_nine_ops_are_proven_to_the_last_digit(number: int, tmp_path: Path) -> None:
    """Whole numbers and decimals, alike and unlike devices: the bound is the exact value, the plan the solution."""
    rng = np.random.default_rng([number, 34])
    objectives: tuple[Objective, ...] = ("latency", "pipeline", "memory")
    objective, digits = objectives[number % 3], number // 3 * 3

    def amount() -> float:
        return round(float(rng.uniform(1, 20)), digits)

    ops = [
        (f"v{v}", {"time_s": {d: amount() for d in "xyz"}, "param_bytes": amount(), "out_bytes": amount()})
        for v in range(9)
    ]
    edges = [(f"v{u}", f"v{v}") for u, v in itertools.combinations(range(9), 2) if rng.random() < 0.25]
    graph = rlinit.Graph.build(ops, edges)
    hardware = rlinit.Hardware(
        tuple(rlinit.Device(d, cache_bytes=60.0) for d in "xyz"), np.full((3, 3), 4.0), np.zeros((3, 3)), "m"
    )
    plan = rlinit.schedule(graph, hardware, objective=objective)
    assert plan.status == "optimal"
    proven = plan.certify_vipr(tmp_path / "x.vipr", graph, hardware)
    text = (tmp_path / "x.vipr").read_text()
    problem = vipr_checker.check(text)
    assert str(problem.least) == problem.most
    assert plan.values is not None
    assert proven == pytest.approx(plan.values[0], rel=1e-15)
    # Of the specification's "constraint reason index" and "the keyword OBJ", what viprchk reads of the last one.
    last = text.splitlines()[-1]
    assert re.fullmatch(rf"\S+ G {problem.least} OBJ {{ (lin|rnd|uns) [0-9/ -]+ }} -1", last), last


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_paths_and_alike_devices_leave_the_optimum(number: int) -> None:
    """The optimum is proven and not one unit more, and the plan satisfies the rows, whatever the longest schedule."""
    case = drawn(number, 8, 9)
    plan = rlinit.schedule(case.graph, case.hardware, objective="latency")
    read = exact_plan(plan, case.graph, case.hardware)
    value, costs = read[3][0], check.Costs(*read[:3], 0, read[3])
    for factor in (1, Fraction(3, 2)):
        program = LatencyProgram(costs, factor * value, 5.0)
        goal = int(value / program.unit)
        assert Proof(program, goal, Budget(20.0)).run()
        assert not Proof(program, goal + 1, Budget(20.0)).run()
        point = program.solution(read[0], value)
        for name, row, least in program.rows:
            assert sum(amount * point.get(at, 0) for at, amount in row.items()) >= least, name


def test_an_op_without_time_runs_before_or_after_another(tmp_path: Path) -> None:
    """Its order on a device is decided, too: z, between p and q, waits for b, or b for it."""
    rows = {"p": (1.0, "x"), "z": (0.0, "y"), "q": (2.0, "x"), "b": (3.0, "y")}
    ops = [(name, {"time_s": time, "out_bytes": 0.0, "forbidden": [other]}) for name, (time, other) in rows.items()]
    graph = rlinit.Graph.build(ops, [("p", "z"), ("z", "q")])
    hardware = rlinit.Hardware.mesh([rlinit.Device("x"), rlinit.Device("y")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    assert plan.value == 4.0
    assert plan.certify_vipr(tmp_path / "x.vipr", graph, hardware) == 4.0
    vipr_checker.check((tmp_path / "x.vipr").read_text())


def test_files_that_would_be_too_long_are_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for a tree ends where its derivations take more than the most bytes of a file."""
    monkeypatch.setattr(derivations, "MAX_BYTES", 50)
    plan = rlinit.schedule(GRAPH, MESH, objective="latency")
    with pytest.raises(InvalidPlan, match="more than 50 bytes"):
        plan.certify_vipr(tmp_path / "x.vipr", GRAPH, MESH)
    assert not list(tmp_path.iterdir())


def test_time_that_ends_leaves_a_weaker_bound(tmp_path: Path) -> None:
    """Without time for a tree the file still proves what one linear program says, or 0."""
    plan = rlinit.schedule(GRAPH, MESH, objective="latency")
    proven = write_vipr(tmp_path / "x.vipr", plan, GRAPH, MESH, 1e-6)
    assert plan.value is not None
    assert 0 <= proven <= plan.value
    vipr_checker.check((tmp_path / "x.vipr").read_text())


def test_the_command_line_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--certify-vipr`` says what is proven; a plan that certificates do not know is printed, and a line says so."""
    GRAPH.save(tmp_path / "g.json")
    STAGES.save(tmp_path / "h.json")
    out = tmp_path / "x.vipr"
    command = ["schedule", str(tmp_path / "g.json"), "--hw", str(tmp_path / "h.json")]
    assert main([*command, "--certify-vipr", str(out)]) == 0
    assert "x.vipr proves a bound of 3.562 s; the plan's is 3.562 s" in " ".join(capsys.readouterr().err.split())
    vipr_checker.check(out.read_text())
    assert main([*command, "--certify-vipr", str(tmp_path)]) == 2
    capsys.readouterr()
    for unknown in (["--no-contiguous"], ["--activations"], ["--objective", "throughput", "--inputs", "1"]):
        assert main([*command, *unknown, "--certify-vipr", str(out)]) == 2
        told = capsys.readouterr()
        assert told.out
        assert "rlinit: the plan cannot be certified: " in told.err
    graph = rlinit.Graph.build([("a", {"time_s": {name: {1: 1.0, 2: 1.5} for name in "xy"}})], [])
    plan = rlinit.schedule(graph, MESH, objective="throughput", inputs=2)
    with pytest.raises(InvalidPlan, match="throughput"):
        plan.certify_vipr(out, graph, MESH)
