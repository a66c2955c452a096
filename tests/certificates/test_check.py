"""The stand-alone checker: proves nothing false, accepts what is true, and refutes every lie planted in a file."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.certificates import certificate_of, check, tree
from rlinit.certificates.lags import BetweenOps
from rlinit.certificates.writing import _packings, _proof, _simple_proofs
from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.plan import Resident, Transfers
from tests.certificates import attack
from tests.draws import draws
from tests.properties import fuzz

CHECKER = Path(check.__file__)
ROOT = Path(__file__).resolve().parents[2]


def costs_of(case: fuzz.Case, level: int, values: tuple[Fraction, ...]) -> check.Costs:
    """Return what the checker knows of a case's costs."""
    graph = check.Graph(check.parse(json.dumps(case.graph.to_dict()), "rlinit-graph", "graph"))
    hardware = check.Hardware(check.parse(json.dumps(case.hardware.to_dict()), "rlinit-hardware", "hardware"))
    plan = {key: case.options[key] for key in ("objective", "resident", "inputs") if key in case.options}
    plan = {"resident": "tensors"} | check.parse(json.dumps(plan), "rlinit-plan", "plan")
    return check.Costs(plan, graph, hardware, level, values)


def can_be_tried(case: fuzz.Case) -> bool:
    """Return whether brute force can, and the checker knows the cost of a case's stages."""
    return case.graph.num_ops <= 6 and not case.options.get("activations")


@pytest.mark.parametrize("first", range(0, draws(400), 100))
def test_states_prove_the_optimum_and_nothing_above(first: int) -> None:
    """Stages below the optimum of brute force do not reach the set of all ops; stages below a little more do."""
    tried = 0
    for number in range(first, first + 100):
        case = fuzz.draw(number, seed=5)
        if case.options["objective"] not in ("pipeline", "memory") or not can_be_tried(case):
            continue
        best = fuzz.optimum(case)
        values = tuple(map(Fraction, best or ()))
        for level, value in enumerate(values):
            costs = costs_of(case, level, tuple(each * (1 + check.ROUNDING) for each in values))
            below, above = value * (1 - check.ROUNDING), value * (1 + 3 * check.ROUNDING) + Fraction(1, 10**30)
            assert below == 0 or check.reached_states(costs, below) is not None, case
            assert check.reached_states(costs, above) is None, case
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("first", range(0, draws(300), 100))
def test_sums_and_packings_stay_below_the_optimum(first: int) -> None:
    """Load, paths, packing and quanta of random problems are at most what brute force finds."""
    for number in range(first, first + 100):
        case = fuzz.draw(number, seed=6)
        if case.options["objective"] == "throughput" or not can_be_tried(case):
            continue
        best = fuzz.optimum(case)
        if best is None:
            continue
        value = Fraction(best[0]) * (1 + check.ROUNDING) + Fraction(1, 10**30)
        costs = costs_of(case, 0, ())
        proofs = list(_simple_proofs(costs))
        for proof in (*proofs, *({"kind": "quantum", "proof": proof} for proof in proofs)):
            with contextlib.suppress(check.Refuted):  # overflow has no quantum
                assert check.prove(proof, costs) <= value, (case, proof)
        for threshold in (value + Fraction(1, 10**30), 2 * value):
            for proof in _packings(costs, threshold):
                with pytest.raises(check.Refuted, match="fit"):
                    check.prove(proof, costs)


def test_loads_bound_throughput() -> None:
    """Shards in batches of the best size stay below brute force's optimum; others are taken of one shard alone."""
    tried = single = 0
    for number in range(400):
        case = fuzz.draw(number, seed=12)
        best = fuzz.optimum(case) if case.options["objective"] == "throughput" and can_be_tried(case) else None
        if best is None:
            continue
        costs = costs_of(case, 0, ())
        for proof in _simple_proofs(costs):
            if proof["kind"] == "load" or costs.runs_once:
                assert check.prove(proof, costs) <= Fraction(best[0]) * (1 + check.ROUNDING), case
            else:
                with pytest.raises(check.Refuted, match="throughput"):
                    check.prove(proof, costs)
        tried += 1
        if costs.runs_once and best[0]:
            between, value = partial(BetweenOps, case.graph, case.hardware), Fraction(best[0])
            for part in (1, Fraction(101, 100)):
                found = _proof(costs, value * part, value * 2, between, Budget(0.5))
                assert part == 1 or found is None, case
                single += found is not None
    assert tried > 10
    assert single > 5


GRAPH = rlinit.Graph.build(
    [
        ("a", {"time_s": {"x": 2.0, "y": 3.5, "stage": 2.5}, "param_bytes": 3.0, "out_bytes": 4.0}),
        ("b", {"time_s": {"x": 1.5, "y": 1.0, "stage": 1.5}, "param_bytes": 2.0, "out_bytes": 2.0}),
        ("c", {"time_s": {"x": 2.5, "y": 2.0, "stage": 1.0}, "param_bytes": 2.5, "out_bytes": 1.0}),
        ("d", {"time_s": {"x": 1.0, "y": 1.0, "stage": 0.5}, "param_bytes": 1.0}),
    ],
    [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
    name="diamond",
)
MESH = Hardware.mesh([Device("x", memory_bytes=30.0), Device("y", memory_bytes=40.0)], 8.0)
STAGES = Hardware.pipeline(2, bandwidth=8.0, cache=5.0)


def files(objective: Any, **options: Any) -> tuple[dict[str, Any], ...]:
    """Return plan, graph, hardware and certificate as they would be written."""
    hardware = STAGES if objective in ("pipeline", "memory") else MESH
    plan = rlinit.schedule(GRAPH, hardware, objective=objective, time_limit_s=5.0, **options)
    return plan.to_dict(), GRAPH.to_dict(), hardware.to_dict(), certificate_of(plan, GRAPH, hardware)


def verdict(plan: Any, graph: Any, hardware: Any, certificate: Any) -> str:
    """Return what the checker says of some files."""
    forms = ("rlinit-plan", "rlinit-graph", "rlinit-hardware", "rlinit-certificate")
    read = [
        check.parse(json.dumps(data), form, form) if data else None
        for data, form in zip((plan, graph, hardware, certificate), forms, strict=True)
    ]
    return check.check(read[0], check.Graph(read[1]), check.Hardware(read[2]), read[3])


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_optimal_stages_are_verified_exactly(objective: str) -> None:
    """The optimum of a small pipeline is proven by the file alone, on every level."""
    told = verdict(*files(objective))
    assert told.startswith("VERIFIED (exact)")
    assert told.endswith("optimal")


@pytest.mark.parametrize("transfers", get_args(Transfers))
@pytest.mark.parametrize("inputs", [1, 2])
def test_values_of_placements_are_verified(inputs: int, transfers: Transfers) -> None:
    """Schedules with transfers of all three kinds are played again in exact numbers."""
    times = {"x": {1: 1.0, 2: 1.5}, "y": {1: 2.0, 2: 2.5}}
    graph = rlinit.Graph.build([(name, {"time_s": times, "out_bytes": 3.0}) for name in "ab"], [("a", "b")])
    plan = rlinit.schedule(
        graph,
        MESH,
        objective="latency" if inputs == 1 else "throughput",
        inputs=inputs,
        transfers=transfers,
        resident="tensors",
        time_limit_s=2.0,
    )
    assert verdict(plan.to_dict(), graph.to_dict(), MESH.to_dict(), None).startswith("VERIFIED (value only)")


@pytest.mark.parametrize("resident", get_args(Resident))
def test_plans_of_random_placements_are_verified(resident: Resident) -> None:
    """What `verify` accepts, with ties, views of nothing, several devices and full memories, the file accepts, too."""
    tried = 0
    for number in range(120):
        case = fuzz.draw(number, seed=8)
        if case.options["objective"] not in ("latency", "throughput") or not can_be_tried(case):
            continue
        options = {key: case.options[key] for key in ("objective", "transfers", "inputs") if key in case.options}
        plan = rlinit.schedule(case.graph, case.hardware, method="heft", resident=resident, **options)
        if plan.assignment is not None:
            told = verdict(plan.to_dict(), case.graph.to_dict(), case.hardware.to_dict(), None)
            assert told.startswith("VERIFIED (value only)"), case
            tried += 1
    assert tried > 20


def test_batches_of_one_moment_do_not_hold_their_tensors_together() -> None:
    """Of ops that take no time and follow each other at once, each reads and makes its own tensors."""
    ops = [
        (name, {"time_s": {"*": 0.0}, "out_bytes": size})
        for name, size in zip("abcd", (8.0, 1.0, 8.0, 1.0), strict=True)
    ]
    graph = rlinit.Graph.build(ops, [("a", "b"), ("b", "c"), ("c", "d")])
    hardware = Hardware.mesh([Device("x", memory_bytes=10.0)], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="peak")
    assert plan.devices[0].held_bytes == 10.0
    told = verdict(plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware))
    assert told.startswith("VERIFIED (exact) latency of 1 input, parallel transfers, peak in memory: value 0;")


def test_tensors_of_ops_without_time_fill_memory_at_any_moment() -> None:
    """What an op without time makes counts while it runs, after a second as at the beginning."""
    times = {"x": 1.0, "y": 0.0, "z": 0.0, "w": 1.0}
    ops = [(name, {"time_s": {"*": time}, "out_bytes": 100.0 if name == "y" else 1.0}) for name, time in times.items()]
    graph = rlinit.Graph.build(ops, [("x", "y"), ("y", "z"), ("z", "w")])
    hardware = Hardware.mesh([Device("d", memory_bytes=1000.0)], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="peak").to_dict()
    assert plan["devices"][0]["held_bytes"] == 103.0
    assert verdict(plan, graph.to_dict(), hardware.to_dict(), None).startswith("VERIFIED")
    for room, said in ((102.0, 103.0), (1000.0, 102.0)):
        small = Hardware.mesh([Device("d", memory_bytes=room)], 1.0)
        lie = plan | {"devices": [plan["devices"][0] | {"held_bytes": said}]}
        with pytest.raises(check.Refuted, match=r"overfills|bytes of"):
            verdict(lie, graph.to_dict(), small.to_dict(), None)


def test_more_inputs_than_the_batches_run_are_refuted_at_once() -> None:
    """A number of inputs that nothing in the plan bears out takes neither memory nor time."""
    graph = rlinit.Graph.build([("a", {"time_s": {"*": {1: 1.0, 2: 1.5}}})], [])
    hardware = Hardware.mesh([Device("x", batch_sizes=(1, 2))], 8.0)
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=2)
    others = graph.to_dict(), hardware.to_dict(), None
    assert verdict(plan.to_dict(), *others).startswith("VERIFIED")
    with pytest.raises(check.Refuted, match="some op runs too seldom"):
        verdict(plan.to_dict() | {"inputs": 10**15}, *others)


def test_plans_on_devices_without_a_path_are_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is missing, or leads one way, is in no schedule and in no proof, with lags as well."""
    monkeypatch.setattr(tree, "_LAG_OPS", range(100))
    rng, proven = np.random.default_rng(0), 0
    for number in range(60):
        case = fuzz.draw(number, seed=31)
        objective = case.options["objective"]
        if objective not in ("latency", "throughput") or case.hardware.num_devices < 2 or not can_be_tried(case):
            continue
        rates = np.where(rng.random(case.hardware.bandwidth.shape) < 0.5, 0.0, case.hardware.bandwidth)
        hardware = dataclasses.replace(case.hardware, bandwidth=rates)
        keys = ("objective", "transfers", "inputs", "resident")
        options = {key: case.options[key] for key in keys if key in case.options}
        plan = rlinit.schedule(case.graph, hardware, time_limit_s=3.0, **options)
        if plan.assignment is None:
            continue
        certificate = certificate_of(plan, case.graph, hardware)
        told = verdict(plan.to_dict(), case.graph.to_dict(), hardware.to_dict(), certificate)
        assert told.startswith("VERIFIED"), case
        best = fuzz.optimum(dataclasses.replace(case, hardware=hardware))
        assert best is not None
        if told.startswith("VERIFIED (exact)"):
            proven += plan.status == "optimal"
            assert plan.bound <= best[0] * (1 + 1e-8), case
    assert proven > 5


def test_what_cannot_be_certified_is_refused_in_one_line(tmp_path: Path) -> None:
    """What the stand-alone checker does not take is an InvalidPlan, wherever it says so, and no Refuted."""
    plan = rlinit.schedule(GRAPH, MESH, objective="latency")
    negative = dataclasses.replace(GRAPH, extras={0: {"note": -1.0}})
    with pytest.raises(InvalidPlan, match=r"the plan cannot be certified: .* stands for no bytes"):
        plan.certify(tmp_path / "c.json", negative, MESH)


def test_axes_may_be_negative() -> None:
    """What importers note of the dimensions of operands has -1 where none is meant, and no plan is refused for it."""
    axes = dataclasses.replace(GRAPH, extras={0: {"axes": {"labels": [[0, -1], [0, -1]]}}})
    plan = rlinit.schedule(axes, MESH, objective="latency")
    certificate = certificate_of(plan, axes, MESH)
    assert verdict(plan.to_dict(), axes.to_dict(), MESH.to_dict(), certificate).startswith("VERIFIED (exact)")


def test_an_edge_that_stands_twice_is_one() -> None:
    """Its tensor is held once, by rlinit and by the checker; two tensors of one op are refused by both."""
    for label in ([], [4.0], ["p"]):
        edges: list[Any] = [("a", "b", *label)]
        ops: list[tuple[str, dict[str, Any]]] = [("a", {"time_s": 1.0, "outputs": {"p": 3.0}, "out_bytes": 2.0})]
        data = rlinit.Graph.build([*ops, ("b", {"time_s": 1.0})], edges).to_dict()
        plan = rlinit.schedule(rlinit.Graph.from_dict(data), MESH, objective="latency", resident="tensors")
        data["edges"] *= 2
        assert plan.graph_fingerprint == rlinit.Graph.from_dict(data).fingerprint()
        assert verdict(plan.to_dict(), data, MESH.to_dict(), None).startswith("VERIFIED")
        data["edges"][0] = ["a", "b", 5.0]
        with pytest.raises(InvalidGraph, match="reads two tensors"):
            rlinit.Graph.from_dict(data)
        with pytest.raises(check.Refuted, match="reads two tensors"):
            verdict(plan.to_dict(), data, MESH.to_dict(), None)


def test_hostile_numbers_are_refused_soon() -> None:
    """A quantum of a quantum, and rates of hundreds of digits, took a minute and a gigabyte."""
    plan, graph, hardware, certificate = files("pipeline")
    proof: dict[str, Any] = {"kind": "load", "multipliers": ["1/2", "1/2"]}
    for _ in range(300):
        proof = {"kind": "quantum", "proof": proof}
    began = time.process_time()
    with pytest.raises(check.Refuted, match="quantum of a quantum"):
        verdict(plan, graph, hardware, certificate | {"levels": [proof]})
    rates = [{**device, "io_bandwidth": 0} for device in hardware["device"]]
    text = json.dumps(hardware | {"device": rates}).replace('"io_bandwidth": 0', '"io_bandwidth": 0.' + "3" * 380)
    with pytest.raises(check.Refuted, match="a number has 382 characters, more than 48"):
        check.parse(text, "rlinit-hardware", "hardware")
    assert time.process_time() - began < 20.0


def numbers_in(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every number in a file."""
    if isinstance(data, dict):
        return [deeper for key, value in data.items() for deeper in numbers_in(value, (*path, key))]
    if isinstance(data, list | tuple):
        return [deeper for at, value in enumerate(data) for deeper in numbers_in(value, (*path, at))]
    return [path] if isinstance(data, int | float) and not isinstance(data, bool) else []


UNREAD = {"history", "phase_s", "provenance", "version", "graph_figures", "baselines", "reserve_bytes"}
"""Fields of a plan that claim nothing of the schedule or its bound."""


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_lies_about_numbers_are_refuted(objective: str) -> None:
    """Every number of the plan that says something of the schedule, raised by a tenth, is refuted."""
    plan, graph, hardware, certificate = files(objective)
    assert "VERIFIED" in verdict(plan, graph, hardware, certificate)
    missed = []
    for path in numbers_in(plan):
        if path[0] in UNREAD:
            continue
        lie = copy.deepcopy(plan)
        lie["stages"], lie["batches"] = list(lie["stages"]), list(lie["batches"])
        spot: Any = lie
        for key in path[:-1]:
            if isinstance(spot[key], tuple):
                spot[key] = list(spot[key])
            spot = spot[key]
        spot[path[-1]] = spot[path[-1]] * 1.1 + 1
        try:
            verdict(lie, graph, hardware, certificate)
            missed.append(path)
        except (check.Refuted, *check.MALFORMED):
            pass
    assert missed == []


def test_mutated_certificates_prove_nothing_false() -> None:
    """Flipped thresholds, counts, multipliers and kinds are refuted, or prove what is true all the same."""
    plan, graph, hardware, certificate = files("pipeline")
    rng = np.random.default_rng(0)
    value = Fraction(plan["values"][0])
    for _ in range(300):
        bad = copy.deepcopy(certificate)
        row = bad["levels"][0]
        kind = rng.choice(["op", "load", "tree", "packing", "states", "quantum"])
        row["kind"] = str(kind)
        row["threshold"] = str(value * Fraction(int(rng.integers(900, 1200)), 1000))
        row["small"] = str(Fraction(int(rng.integers(0, 30)), 10))
        row["multipliers"] = [str(Fraction(int(rng.integers(-2, 12)), 10)) for _ in range(2)]
        row["reached"] = [int(count) for count in rng.integers(0, 6, 2)]
        row["nodes"] = []
        row["proof"] = {"kind": "op"}
        try:
            bound = check.prove(check.parse(json.dumps(row), "rlinit-certificate", "row"), _costs(graph, hardware))
        except (check.Refuted, *check.MALFORMED):
            continue
        assert bound <= value


def _costs(graph: Any, hardware: Any) -> check.Costs:
    raw = check.Graph(check.parse(json.dumps(graph), "rlinit-graph", "graph"))
    devices = check.Hardware(check.parse(json.dumps(hardware), "rlinit-hardware", "hardware"))
    return check.Costs({"objective": "pipeline"}, raw, devices, 0, ())


def latency_cases(numbers: range, seed: int) -> Iterator[tuple[fuzz.Case, check.Costs, Fraction, Fraction]]:
    """Yield small problems of latency with their costs, optimum, and a value above what rounding makes of that."""
    for number in numbers:
        case = fuzz.draw(number, seed=seed)
        if case.options["objective"] != "latency" or not can_be_tried(case):
            continue
        best = fuzz.optimum(case)
        if best and best[0]:
            value = Fraction(best[0])
            yield case, costs_of(case, 0, ()), value, value * (1 + 3 * check.ROUNDING) + Fraction(1, 10**30)


@pytest.mark.parametrize("lags", [range(0), range(100)])
@pytest.mark.parametrize("first", range(0, draws(600), 200))
def test_trees_prove_the_optimum_and_nothing_above(first: int, lags: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force's optimal latency is proven where transfers do not wait and no tensors are freed; no more is."""
    monkeypatch.setattr(tree, "_LAG_OPS", lags)
    tried = 0
    for case, costs, value, above in latency_cases(range(first, first + 200), seed=21):
        between = partial(BetweenOps, case.graph, case.hardware)
        assert tree.tree_proof(costs, above, between, Budget(10.0)) is None, case
        proof = tree.tree_proof(costs, value * (1 - check.ROUNDING), between, Budget(10.0))
        tried += 1
        if proof is None:
            assert case.options["resident"] == "peak" or case.options["transfers"] != "parallel", case
        else:
            read = check.parse(json.dumps(proof), "rlinit-certificate", "row")
            assert value * (1 - check.ROUNDING) <= check.prove(read, costs) <= above
    assert tried > 20


def test_lags_that_are_longer_than_proven_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is changed in lags and their trees, nothing above the optimum of brute force is proven."""
    monkeypatch.setattr(tree, "_LAG_OPS", range(100))
    rng, tried, lagged = np.random.default_rng(0), 0, 0
    for case, costs, value, above in latency_cases(range(400), seed=22):
        between = partial(BetweenOps, case.graph, case.hardware)
        proof = tree.tree_proof(costs, value * (1 - check.ROUNDING), between, Budget(10.0))
        if proof is None or not proof["lags"]:
            continue
        lagged += 1
        proof["threshold"] = str(above)
        for _ in range(20):
            bad = copy.deepcopy(proof)
            lag = bad["lags"][int(rng.integers(len(bad["lags"])))]
            kind = int(rng.integers(4))
            if kind < 2 and "least" in lag:
                row = lag["least"][int(rng.integers(costs.num_devices))]
                row[int(rng.integers(len(row)))] += int(rng.integers(1, 3)) * 10 ** int(rng.integers(0, 22))
            elif kind == 2:
                lag[str(rng.choice(["from", "to"]))] = int(rng.integers(case.graph.num_ops))
            else:
                bad["lags"].append({"from": lag["from"], "to": lag["to"], "same": int(rng.integers(len(bad["lags"])))})
            tried += 1
            with pytest.raises((check.Refuted, *check.MALFORMED)):
                check.prove(check.parse(json.dumps(bad), "rlinit-certificate", "row"), costs)
    assert lagged > 5
    assert tried > 100


def test_a_chain_of_branches_is_proven_by_lags_and_copies_share_a_proof() -> None:
    """Forty blocks of three branches on two devices have a tree of a few nodes, for one block."""
    ops, edges = [("b0", {"time_s": 1.0, "out_bytes": 2.0})], []
    for k in range(40):
        inner = [f"{branch}{k}" for branch in "xyz"]
        ops += [(name, {"time_s": 1.0, "out_bytes": 2.0}) for name in [*inner, f"b{k + 1}"]]
        edges += [(f"b{k}", name) for name in inner] + [(name, f"b{k + 1}") for name in inner]
    graph, hardware = rlinit.Graph.build(ops, edges), Hardware.mesh([Device("x"), Device("y")], 4.0)
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=20.0)
    assert plan.status == "optimal"
    certificate = certificate_of(plan, graph, hardware)
    assert not certificate["trusted"]
    assert any("same" in lag for lag in certificate["levels"][0]["lags"])
    told = verdict(plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate)
    assert told.startswith("VERIFIED (exact)")


@pytest.mark.parametrize("seed", range(2))
def test_lags_are_as_long_as_the_least_times_on_unlike_devices(seed: int) -> None:
    """They alone refute the optimum of a chain of four kinds of blocks with times from a continuum."""
    rng = np.random.default_rng(seed)
    kinds = rng.uniform(0.2, 1.0, (4, 6, 3))
    ops: list[tuple[str, dict[str, Any]]] = [("b0", {"time_s": dict.fromkeys("xyz", 1.0), "out_bytes": 1.0})]
    edges = []
    for k in range(12):
        inner = [f"{branch}{part}{k}" for branch in "xyz" for part in "01"][:5]
        times = kinds[k // 3].tolist()
        ops += [
            (name, {"time_s": dict(zip("xyz", time, strict=True)), "out_bytes": 1.0})
            for name, time in zip([*inner, f"b{k + 1}"], times, strict=True)
        ]
        edges += [(f"b{k}", f"{branch}0{k}") for branch in "xyz"] + [(f"x0{k}", f"x1{k}"), (f"y0{k}", f"y1{k}")]
        edges += [(name, f"b{k + 1}") for name in (f"x1{k}", f"y1{k}", f"z0{k}")]
    graph, hardware = rlinit.Graph.build(ops, edges), Hardware.mesh([Device(name) for name in "xyz"], 4.0)
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=20.0)
    assert plan.status == "optimal"
    certificate = certificate_of(plan, graph, hardware)
    assert certificate["levels"][0]["lags"]
    assert not certificate["levels"][0]["nodes"]
    told = verdict(plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate)
    assert told.startswith("VERIFIED (exact)")


def test_rows_that_hold_nowhere_are_refuted() -> None:
    """Trees whose rows name ops in no order, negative multipliers, or more time than there has to be, prove nothing."""
    graph = rlinit.Graph.build([(name, {"time_s": 2.0}) for name in "abc"], [("a", "b")])
    hardware = Hardware.mesh([Device("x"), Device("y")], 1.0)
    case = fuzz.Case(0, graph, hardware, {"objective": "latency"})
    costs = costs_of(case, 0, ())
    rows: list[list[Any]] = [
        ["before", 0, 2, 9],
        ["before", -3, 1, 9],
        ["head", 0, -1],
        ["interval", 0, 3, 3, 1],
        ["between", 0, 2, 0, 1],
        ["between", -1, -1, -1, 1],
        ["memory", 0, 1],
        ["move", 0, 1, 0, 1],
        ["move", 0, 1, 1],
        [],
    ]
    assert check.prove({"kind": "tree", "threshold": "4", "nodes": []}, costs) == 4
    for row in rows:
        with pytest.raises((check.Refuted, *check.MALFORMED)):
            check.prove({"kind": "tree", "threshold": "5", "nodes": [{"rows": [row]}]}, costs)
    wrong: list[list[Any]] = [[], [{"op": 0}], [{"pair": [0, 1]}], [{"pair": [0, 0]}], [{}], [{"op": 7}]]
    for nodes in wrong:
        with pytest.raises((check.Refuted, *check.MALFORMED)):
            check.prove({"kind": "tree", "threshold": "5", "nodes": nodes}, costs)


def test_rows_with_more_arguments_than_they_have_prove_nothing() -> None:
    """The head of one op is not that of another, and a transfer does not count once for each mention of a device."""
    side = rlinit.Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0}), ("c", {"time_s": 2.0})], [("a", "b")])
    apart = rlinit.Graph.build(
        [
            ("a", {"time_s": 2.0, "out_bytes": 1.0, "forbidden": ["y"]}),
            ("b", {"time_s": 2.0, "forbidden": ["x"]}),
        ],
        [("a", "b")],
    )
    hardware = Hardware.mesh([Device("x"), Device("y")], 1.0)
    lies: list[tuple[Any, str, list[list[Any]]]] = [
        (side, "3", [["head", 1, 2, 1], ["tail", 2, 1]]),
        (side, "3", [["tail", 2, 1], ["before", 0, 1, 2, 1], ["memory", 0, 0, 1]]),
        (apart, "6", [["head", 0, 1], ["move", 0, 1, 0, 0, 1], ["tail", 1, 1]]),
    ]
    for graph, threshold, rows in lies:
        costs = costs_of(fuzz.Case(0, graph, hardware, {"objective": "latency"}), 0, ())
        with pytest.raises(check.Refuted):
            check.prove({"kind": "tree", "threshold": threshold, "nodes": [{"rows": rows}]}, costs)
    costs = costs_of(fuzz.Case(0, side, hardware, {"objective": "latency"}), 0, ())
    for node in ({"op": -1}, {"pair": [-1, 2]}):
        with pytest.raises(check.Refuted):
            check.prove({"kind": "tree", "threshold": "3", "nodes": [node]}, costs)


@pytest.mark.parametrize("first", range(0, draws(3_000), 1_000))
def test_what_mutated_files_claim_is_true(first: int) -> None:
    """A place changed in a plan, graph, hardware or certificate is refused, or what is accepted still holds."""
    found, answers = attack.attack(min(400, draws(800)), first, seed=3)
    assert found == []
    assert answers["VERIFIED (exact)"] > 20


def test_a_consistent_liar_is_found_where_a_checker_believes_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of larger shards, with its bound and multipliers, is a lie that the generator tells and sees accepted."""
    files = attack.base(65, 55)
    assert files is not None
    lies = [attack.told_of_this(files, np.random.default_rng([65, k])) for k in range(12)]

    def accepted() -> list[str]:
        answers = [(bad, attack.verdict(bad)) for bad, _ in filter(None, lies)]
        return [wrong for bad, told in answers if told and (wrong := attack.lie(bad, told, attack.optimum_of))]

    assert accepted() == []
    monkeypatch.setattr(check, "shard_of", lambda graph, hardware, inputs: inputs)
    assert any("false bound" in wrong for wrong in accepted())


def test_full_devices_leave_the_others_to_the_rest() -> None:
    """As many large ops as devices prove nothing: each has a device of its own."""
    graph = rlinit.Graph.build([("a", {"time_s": 3.0}), ("b", {"time_s": 3.0})], [])
    costs = _costs(graph.to_dict(), Hardware.pipeline(2).to_dict())
    with pytest.raises(check.Refuted, match="fit"):
        check.prove({"kind": "packing", "threshold": "4", "small": "2"}, costs)


def test_packings_by_parts_prove_what_l2_does_not() -> None:
    """Two of seven ops of over a third of the threshold fit a device; of those of a third, three do."""

    def costs_of_seven(size: float) -> check.Costs:
        graph = rlinit.Graph.build([(f"v{i}", {"time_s": size}) for i in range(7)], [])
        return _costs(graph.to_dict(), Hardware.pipeline(3).to_dict())

    proof = {"kind": "packing", "threshold": "3", "small": "0", "parts": "2"}
    assert check.prove(proof, costs_of_seven(1.25)) == 3
    for parts in ("0", "1", "3"):
        with pytest.raises(check.Refuted, match="fit"):
            check.prove(proof | {"parts": parts}, costs_of_seven(1.25))
    with pytest.raises(check.Refuted, match="fit"):
        check.prove(proof, costs_of_seven(1.0))
    for parts in ("-2", "1/2"):
        with pytest.raises(check.Refuted, match="whole number"):
            check.prove(proof | {"parts": parts}, costs_of_seven(1.25))


def test_packings_are_raised_to_the_quantum_of_the_times() -> None:
    """Three ops of six and more are on one device: whole numbers below 17 and a bit are refuted, so 18 is proven."""
    graph = rlinit.Graph.build([(f"v{i}", {"time_s": 6.0 + i % 2}) for i in range(7)], [])
    plan = rlinit.schedule(graph, Hardware.pipeline(3), objective="pipeline")
    (proof,) = certificate_of(plan, graph, Hardware.pipeline(3))["levels"]
    assert plan.bound == 18
    assert (proof["kind"], proof["proof"]["kind"]) == ("quantum", "packing")
    assert Fraction(proof["proof"]["threshold"]) < Fraction(171, 10)


@pytest.mark.parametrize("run", ["check.py", "tools/check.py"])
def test_the_checker_needs_the_standard_library_alone(run: str, tmp_path: Path) -> None:
    """The file runs by itself or by way of tools, where no package is found, and imports nothing else."""
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(CHECKER.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert {str(name).partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    names = ("plan", "graph", "hardware", "certificate")
    for name, data in zip(names, files("pipeline"), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    paths = [str(tmp_path / f"{name}.json") for name in names]
    for kept in ("check.py", "tools/check.py", "rlinit/certificates/check.py"):
        (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tools" / "check.py" if kept.startswith("tools") else CHECKER, tmp_path / kept)
    command = [sys.executable, "-I", "-S", str(tmp_path / run), *paths]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path.parent)
    assert told.stdout.startswith("VERIFIED (exact)"), told
    (tmp_path / "plan.json").write_text("{")
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout.count("\n")) == (1, 1)
    assert told.stdout.startswith("REFUTED")


def test_a_bound_without_a_proof_names_what_it_rests_on(tmp_path: Path) -> None:
    """A plan whose bound no proof reaches is verified in its value alone, and says who is trusted."""
    plan = rlinit.schedule(GRAPH, STAGES, objective="pipeline")
    better = dataclasses.replace(plan, bounds=(plan.value * (1 + 5e-7),), bound_source="oracle")
    assert certificate_of(better, GRAPH, STAGES)["trusted"] == ["oracle"]
    assert plan.certify(tmp_path / "c.json", GRAPH, STAGES) == ()


def _set(path: str, value: Any) -> Any:
    """Return what puts a value at a path of the four files, such as ``plan batches 0 start_s``."""

    def plant(written: dict[str, Any]) -> None:
        spot: Any = written
        *way, last = [int(key) if key.isdigit() else key for key in path.split()]
        for key in way:
            spot = spot[key]
        spot[last] = value

    return plant


EMPTY_BATCH = {"op": "a", "device": "y", "start_s": 0.0, "end_s": 0.0, "shards": []}
LIES = [
    ("latency", lambda files: files["plan"]["batches"].append(EMPTY_BATCH)),
    ("latency", _set("plan batches 0 shards", [0.5])),
    ("latency", _set("plan batches 0 shards", [False])),
    ("latency", _set("plan shard_inputs", 1.5)),
    ("latency", _set("plan resident", "nothing")),
    ("latency", _set("plan transfer_rule", "free")),
    ("latency", _set("plan stages", [{}])),
    ("latency", _set("graph edges 0", ["a", "b", -4.0])),
    ("latency", _set("graph edges 0", ["a", "b", None])),
    ("latency", _set("graph ops 0 outputs", {"": -1.0})),
    ("latency", _set("graph ops 0 outputs", {"": True})),
    ("latency", _set("graph ops 0 forbidden", "xy")),
    ("latency", _set("graph ops 0 time_s", {"x": 2.0, "y": 3.5, "stage": {}})),
    ("latency", _set("graph oops", [])),
    ("latency", _set("hardware device 0 flops_per_s", -1.0)),
    ("latency", _set("hardware device 0 batch_sizes", [1.5])),
    ("latency", _set("hardware device 0 memory_bytes", None)),
    ("latency", _set("hardware latency", 1e9)),
    ("latency", _set("certificate levels 0 threshold", "1e999999999")),
    ("latency", _set("certificate levels 0 threshold", " 7 ")),
    ("pipeline", _set("plan assignment a", "0")),
    ("pipeline", _set("plan assignment a", 0.25)),
    ("pipeline", _set("plan shard_inputs", "auto")),
    ("pipeline", _set("plan batches", [EMPTY_BATCH])),
    ("pipeline", _set("graph ops 3 backward_of", "a")),
    ("pipeline", _set("plan chunks", 2)),
    ("pipeline", _set("plan training", {"schedule": "1f1b"})),
]


@pytest.mark.parametrize("at", range(len(LIES)))
def test_lies_planted_by_hand_are_refuted(at: int) -> None:
    """No field may hold less than nothing, half a shard, an empty batch, an unknown rule or another kind of value."""
    objective, plant = LIES[at]
    names = ("plan", "graph", "hardware", "certificate")
    written = dict(zip(names, json.loads(json.dumps(files(objective))), strict=True))
    assert attack.verdict(written).startswith("VERIFIED (exact)")
    plant(written)
    assert attack.verdict(written) == ""


def test_written_times_may_not_overlap() -> None:
    """Two ops of one device at one time are refuted, though their order alone would give the value."""
    graph = rlinit.Graph.build([(name, {"time_s": 1.0}) for name in "abc"], [("a", "c"), ("b", "c")])
    hardware = Hardware.mesh([Device("x")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    written = json.loads(json.dumps(plan.to_dict()))
    assert verdict(written, graph.to_dict(), hardware.to_dict(), None).startswith("VERIFIED")
    second = written["batches"][1]
    second["start_s"], second["end_s"] = 1.5, 2.5
    third = written["batches"][2]
    written["start_s"][second["op"]] = 1.5
    with pytest.raises(check.Refuted, match="waits for"):
        verdict(written, graph.to_dict(), hardware.to_dict(), None)
    assert third["start_s"] == 2.0


@pytest.mark.parametrize("objective", ["pipeline", "latency", "throughput"])
def test_an_op_needs_a_time_wherever_it_may_run(objective: Any) -> None:
    """A graph that rlinit refuses is refuted, though the plan runs the op where and as it has a time."""
    times = {device: {1: 1.0, 2: 1.5} for device in "xy"}
    ops = [(name, {"time_s": times, "param_bytes": 1.0, "out_bytes": 1.0}) for name in "ab"]
    graph = rlinit.Graph.build(ops, [("a", "b")])
    hardware = Hardware.mesh([Device("x", batch_sizes=(1, 2)), Device("y", batch_sizes=(1, 2))], 1.0)
    plan = rlinit.schedule(graph, hardware, objective=objective, inputs=2 if objective == "throughput" else None)
    assert verdict(plan.to_dict(), graph.to_dict(), hardware.to_dict(), None).startswith("VERIFIED")
    assert plan.assignment is not None
    taken = {(row.device, len(row.shards)) for row in plan.batches if row.op == "a"}
    taken = taken or {(plan.stages[int(plan.assignment["a"])].device, 1)}
    assert plan.shard_inputs == 1
    for device, size in {("x", 1), ("y", 1), ("x", 2), ("y", 2)} - taken:
        damaged = json.loads(json.dumps(graph.to_dict()))
        del damaged["ops"][0]["time_s"][device][str(size)]
        if size == 2 and objective != "throughput":
            assert verdict(plan.to_dict(), damaged, hardware.to_dict(), None).startswith("VERIFIED")
        else:
            with pytest.raises(check.Refuted, match="no time"):
                verdict(plan.to_dict(), damaged, hardware.to_dict(), None)


def test_the_answer_is_one_line(tmp_path: Path) -> None:
    """No text of a file adds a line that looks like a verdict."""
    plan, graph, hardware, certificate = files("pipeline")
    certificate = {**certificate, "levels": [None], "trusted": ["x\nVERIFIED (exact) value 1; optimal"]}
    names = ("plan", "graph", "hardware", "certificate")
    for name, data in zip(names, (plan, graph, hardware, certificate), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    command = [sys.executable, "-I", "-S", str(CHECKER), *(str(tmp_path / f"{name}.json") for name in names)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert told.startswith("VERIFIED (value only)")
    assert told.count("\n") == 1
