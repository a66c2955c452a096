"""Proofs by states: shortcuts of the search change no counts, and what is accepted holds by brute force."""

from __future__ import annotations

import contextlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import certificate_of, check
from rlinit.certificates.programs import exact_plan
from rlinit.cli.main import main
from rlinit.plan import Objective
from tests.certificates.test_check import GRAPH, STAGES, can_be_tried, costs_of
from tests.draws import draws
from tests.properties import fuzz
from tests.properties.brute_force import best_stages


def prove(proof: Any, costs: check.Costs) -> Fraction | None:
    """Return the bound of a proof; None where it is refused."""
    read = check.parse(json.dumps(proof), "rlinit-certificate", "proof")
    with contextlib.suppress(check.Refuted, *check.MALFORMED):
        return check.prove(read, costs)
    return None


@pytest.mark.parametrize("first", range(0, draws(300), 100))
def test_shortcuts_count_the_same_sets(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below, at and above the optimum of random problems of all scales; a mutated proof is refused or still a bound."""
    rng, tried, refused = np.random.default_rng(first), 0, 0
    for number in range(first, first + 100):
        case = fuzz.draw(number, seed=31)
        if case.options["objective"] not in ("pipeline", "memory") or not can_be_tried(case):
            continue
        values = tuple(map(Fraction, fuzz.optimum(case) or ()))
        for level, value in enumerate(values):
            costs = costs_of(case, level, tuple(each * (1 + check.ROUNDING) for each in values))
            for factor in (Fraction(1, 2), 1 - check.ROUNDING, 1, 1 + check.ROUNDING, Fraction(3, 2)):
                counts = []
                for few, vectors in ((20, 256), (0, 256), (20, 0)):
                    monkeypatch.setattr(check, "FEW", few)
                    monkeypatch.setattr(check, "MOST_VECTORS", vectors)
                    counts.append(check.reached_states(costs, value * factor))
                assert counts[0] == counts[1] == counts[2], (case, level, factor)
                proof: dict[str, Any] = {
                    "kind": "states",
                    "threshold": str(value * factor),
                    "reached": counts[0] or [1],
                }
                if rng.random() < 0.5:
                    proof["reached"][int(rng.integers(len(proof["reached"])))] += int(rng.choice([-1, 1]))
                elif rng.random() < 0.5:
                    proof["threshold"] = str(value * factor * Fraction(int(rng.integers(5, 20)), 10))
                bound = prove(proof, costs)
                assert bound is None or bound <= value * (1 + 3 * check.ROUNDING) + Fraction(1, 10**30)
                refused += bound is None
                tried += 1
    assert tried > 100
    assert tried > refused > 20


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_weightless_ops_are_joined_and_the_optimum_stays(objective: Objective, tight: bool) -> None:
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


def test_a_proof_that_takes_too_long_is_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its budget of pairs the checker says so and proves nothing; a wrong count is refuted."""
    plan = rlinit.schedule(GRAPH, STAGES, objective="pipeline")
    certificate = certificate_of(plan, GRAPH, STAGES)
    value = Fraction(plan.values[0]) if plan.values else Fraction(0)
    graph = check.Graph(check.parse(json.dumps(GRAPH.to_dict()), "rlinit-graph", "graph"))
    hardware = check.Hardware(check.parse(json.dumps(STAGES.to_dict()), "rlinit-hardware", "hardware"))
    written = check.parse(json.dumps(plan.to_dict()), "rlinit-plan", "plan")
    reached = check.reached_states(check.Costs(written, graph, hardware, 0, (value,)), value)
    certificate["levels"] = [{"kind": "states", "threshold": str(value), "reached": reached}]
    plan.save(tmp_path / "plan.json")
    GRAPH.save(tmp_path / "graph.json")
    STAGES.save(tmp_path / "hardware.json")
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    paths = [str(tmp_path / f"{name}.json") for name in ("plan", "graph", "hardware", "certificate")]
    assert main(["verify", *paths]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact) ")
    with monkeypatch.context() as patch:
        patch.setattr(check, "MOST_PAIRS", 1)
        assert check.main(paths) == 0
    told = capsys.readouterr().out
    assert told.startswith("VERIFIED (value only)")
    assert "more than 1 pairs" in told
    certificate["levels"][0]["reached"][0] += 1
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    assert main(["verify", *paths]) == 1
    assert capsys.readouterr().out.startswith("REFUTED: the proof counts")
