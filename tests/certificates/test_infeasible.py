"""Plans of problems without a schedule: what proves them, and that nothing proves it of problems that have one."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.certificates import certificate_of, check
from rlinit.certificates.programs import PlacementProgram
from rlinit.certificates.proof import Proof
from rlinit.certificates.writing import _refutation
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.plan import Plan, TrainingUse
from rlinit.stages.training.lowering import lower_training
from rlinit.stages.training.rules import TrainingRules
from tests.certificates import attack, veripb_checker, vipr_checker
from tests.certificates.test_check import can_be_tried, costs_of
from tests.draws import draws
from tests.properties import fuzz

Files = dict[str, Any]


def answer(files: Files) -> str:
    """Return the checker's line on a plan, graph, hardware and certificate."""
    forms = {"plan": "rlinit-plan", "graph": "rlinit-graph", "hardware": "rlinit-hardware"}
    rows = [check.parse(json.dumps(files[name]), form, name) for name, form in forms.items()]
    told = files["certificate"]
    proof = None if told is None else check.parse(json.dumps(told), "rlinit-certificate", "certificate")
    return check.answer(lambda: (*rows, proof))


def certified(graph: rlinit.Graph, hardware: Hardware, **asked: Any) -> tuple[Plan, Files]:
    """Return an infeasible plan and its four files."""
    plan = rlinit.schedule(graph, hardware, **asked)
    assert plan.status == "infeasible"
    certificate = certificate_of(plan, graph, hardware)
    files = {"plan": plan.to_dict(), "graph": graph.to_dict(), "hardware": hardware.to_dict()}
    return plan, files | {"certificate": certificate}


def mesh(memory: float, bandwidth: float = 1.0) -> Hardware:
    """Return two devices of so many bytes each."""
    return Hardware.mesh([Device(name, memory_bytes=memory) for name in "xy"], bandwidth)


def row(size: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return an op of so many bytes."""
    return {"time_s": {"*": {1: 1.0, 2: 2.0}}, "param_bytes": size, "out_bytes": 1.0} | more


CASES: dict[str, tuple[Any, Any, float, tuple[str, ...]]] = {
    "memories hold less than all ops": ([row(2.0)] * 4, [], 3.0, ("pipeline", "memory", "latency", "throughput")),
    "one op is too large": ([row(9.0)], [], 3.0, ("pipeline", "memory", "latency", "throughput")),
    "an op is forbidden everywhere": ([row(forbidden=["x", "y"])], [], 9.0, ("pipeline", "memory", "latency")),
    "a group has no common device": (
        [row(colocate="g", forbidden=["x"]), row(colocate="g", forbidden=["y"])],
        [],
        9.0,
        ("pipeline", "memory", "latency"),
    ),
    "a group is too large": ([row(2.0, colocate="g")] * 2, [], 3.0, ("pipeline", "latency", "throughput")),
    "sizes do not fit each other": ([row(2.0)] * 3, [], 3.0, ("pipeline", "memory", "latency")),
    "an op must be before the stage of its source": (
        [row(forbidden=["x"]), row(forbidden=["y"])],
        [("v0", "v1")],
        9.0,
        ("memory",),
    ),
}


@pytest.mark.parametrize(("why", "objective"), [(why, one) for why, case in CASES.items() for one in case[-1]])
def test_reasons_are_proven(why: str, objective: str, tmp_path: Path) -> None:
    """Memory, forbidden devices, groups and the order of stages: there is no schedule, in three formats."""
    rows, edges, memory, _ = CASES[why]
    graph = rlinit.Graph.build([(f"v{v}", each) for v, each in enumerate(rows)], edges)
    asked: dict[str, Any] = {"resident": "weights"} if objective in ("latency", "throughput") else {}
    asked |= {"inputs": 2} if objective == "throughput" else {}
    plan, files = certified(graph, mesh(memory), objective=objective, **asked)
    assert files["certificate"]["trusted"] == []
    assert answer(files).startswith(f"VERIFIED (exact) {objective}")
    assert answer(files).endswith(": infeasible")
    assert "nothing here proves" in answer(files | {"certificate": None})
    wide = [device | {"memory_bytes": 99.0} for device in files["hardware"]["device"]]
    bare = [each | {"forbidden": [], "colocate": None} for each in files["graph"]["ops"]]
    bare = [{key: value for key, value in each.items() if value is not None} for each in bare]
    easy = files | {"graph": files["graph"] | {"ops": bare}, "hardware": files["hardware"] | {"device": wide}}
    assert answer(easy).startswith("REFUTED")
    if objective in ("pipeline", "memory"):  # or what memory holds would count by another rule
        assert answer(files | {"plan": files["plan"] | {"resident": "peak"}}).startswith("REFUTED")
    for key, value in (("values", [1.0]), ("assignment", {"v0": 0}), ("bounds", [1.0]), ("status", "no_solution")):
        assert answer(files | {"plan": files["plan"] | {key: value}}).startswith("REFUTED")
    assert plan.certify_vipr(tmp_path / "x.vipr", graph, mesh(memory)) == math.inf
    assert plan.certify_veripb(tmp_path / "x.pbp", graph, mesh(memory)) == math.inf
    assert least_of(tmp_path) == (1, 1)


def least_of(folder: Path) -> tuple[Any, int]:
    """Return what the tests' checkers of VIPR's and VeriPB's formats say that C is at least."""
    program, proof = (folder / "x.opb").read_text(), (folder / "x.pbp").read_text()
    return vipr_checker.check((folder / "x.vipr").read_text()).least, veripb_checker.check(program, proof).least


@pytest.mark.parametrize("first", range(0, draws(300), 100))
def test_nothing_proves_it_where_brute_force_has_a_schedule(first: int) -> None:
    """Proofs are found of problems without a schedule, of most of them, and of no other."""
    none = found = refuted = 0
    for number in range(first, first + 100):
        case = fuzz.draw(number, seed=43)
        if not can_be_tried(case):
            continue
        costs = costs_of(case, 0, (check.ZERO,) * 3)
        proof = _refutation(costs)
        tree = Proof(PlacementProgram(costs), 1, Budget(2.0)).run()
        if proof is None and not tree and number % 4:  # brute force of all takes long
            continue
        best = fuzz.optimum(case)
        assert (proof is None and not tree) or best is None, case
        none += best is None
        found += proof is not None
        refuted += tree
    assert min(found, refuted) >= 0.7 * none


def training_files(number: int, seed: int) -> tuple[float, Files | None]:
    """Return the optimum of a small training pipeline, and files that prove that it has none, if a proof is found."""
    graph, hardware, asked = fuzz.drawn_training(number, seed, share=number % 4 == 0)
    try:
        best = fuzz.best_training(graph, hardware, asked)
        rules = TrainingRules(**training_rules(asked))
        lower_training(graph, hardware, rules)
    except RlinitError:  # gradients contradict forward edges
        return math.nan, None
    use = TrainingUse(rules.schedule, rules.microbatches, rules.recompute, rules.state_factor, 0.0, ())
    marks = "", graph.fingerprint(), "", hardware.fingerprint()
    plan = Plan("pipeline", "infeasible", None, None, "", "", None, (), (), {}, *marks, message="none")
    plan = dataclasses.replace(plan, training=use, chunks=rules.chunks)
    files = {"plan": plan.to_dict(), "graph": graph.to_dict(), "hardware": hardware.to_dict()}
    try:
        return best, files | {"certificate": certificate_of(plan, graph, hardware, 5.0)}
    except InvalidPlan:
        return best, None


def training_rules(asked: Any) -> Any:
    """Return the options of `rlinit.schedule` as rules of training."""
    keys = ("training", "microbatches", "recompute", "optimizer")
    names = ("schedule", "microbatches", "recompute", "state_factor")
    return dict(zip(names, map(asked.get, keys), strict=True)) | {"chunks": asked.get("chunks", 1)}


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_training_pipelines_without_a_schedule(first: int) -> None:
    """Of those that brute force finds none of, all have a proof but where stages are interleaved; no other has one.

    Changed in one place, the files are refused, or there is no schedule either.
    """
    none = found = 0
    for number in range(first, first + 40):
        best, files = training_files(number, seed=7)
        if math.isnan(best):
            continue
        assert files is None or math.isinf(best), number
        if math.isinf(best):
            interleaved = fuzz.drawn_training(number, 7)[2]["training"] == "interleaved"
            none, found = none + 1, found + (files is not None)
            assert files is not None or interleaved, number
        if files is not None:
            told = attack.verdict(files)
            assert told.endswith(": infeasible"), number
            assert f"schedule {files['plan']['training']['schedule']}" in told
            rng = np.random.default_rng([7, number])
            for _ in range(15):
                bad, what = attack.mutated(files, rng)
                assert not attack.verdict(bad) or lacks_schedule(bad), (number, what)
    assert found >= 0.8 * none > 0


def lacks_schedule(files: Files) -> bool:
    """Return whether brute force finds no training pipeline as files ask for it, or they are no problem for it."""
    files = attack.whole(files)
    use = files["plan"]["training"]
    if not use:  # without training memory holds parameters alone
        return attack.optimum_of(json.dumps([files["graph"], files["hardware"]]), *attack.rules(files["plan"])) is None
    asked = {"training": use["schedule"], "optimizer": use["state_factor"], "chunks": files["plan"].get("chunks", 1)}
    asked |= {key: use[key] for key in ("microbatches", "recompute")}
    try:
        graph, hardware = rlinit.Graph.from_dict(files["graph"]), Hardware.from_dict(files["hardware"])
        lower_training(graph, hardware, TrainingRules(**training_rules(asked)))
        return math.isinf(fuzz.best_training(graph, hardware, asked))
    except (RlinitError, *check.MALFORMED):
        return True


def test_shards_of_an_output_may_stay_on_several_devices() -> None:
    """What no op reads stays to the end: 10 bytes of each input fit on devices of 15, and nothing proves otherwise."""
    graph = rlinit.Graph.build([("a", {"time_s": {"*": {1: 1.0, 2: 2.0}}, "out_bytes": 10.0})], [])
    hardware = Hardware.mesh([Device(name, memory_bytes=15.0, batch_sizes=(1,)) for name in "xy"], 1.0)
    case = fuzz.Case(0, graph, hardware, {"objective": "throughput", "inputs": 2, "resident": "peak"})
    costs = costs_of(case, 0, (check.ZERO,) * 3)
    assert rlinit.schedule(graph, hardware, objective="throughput", inputs=2).status == "optimal"
    assert check.count_places(costs) is None
    assert not Proof(PlacementProgram(costs), 1, Budget(2.0)).run()


def test_a_view_of_nothing_lies_in_parameters() -> None:
    """A view that reads no tensor takes no bytes, so that it fits where they would not."""
    graph = rlinit.Graph.build([("a", {"time_s": 2.0, "out_bytes": 9.0, "view": True})], [])
    case = fuzz.Case(0, graph, mesh(5.0), {"objective": "latency", "resident": "peak"})
    assert rlinit.schedule(graph, mesh(5.0), objective="latency").status == "optimal"
    assert _refutation(costs_of(case, 0, (check.ZERO,) * 3)) is None


@pytest.mark.parametrize("most", [256, 2])
def test_spreads_of_shards_have_proofs_where_there_is_no_schedule(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of few sizes, tight memories and missing links: all that have no schedule are refuted, no others.

    Where one shard stands for all, fewer are, and no others either.
    """
    monkeypatch.setattr(check, "MOST_SPREADS", most)
    statuses = list[str]()
    for number in range(24):
        rng = np.random.default_rng([34, number])
        d, inputs = int(rng.integers(1, 4)), int(rng.integers(2, 4))
        rows = [
            row(size, out_bytes=float(rng.integers(7))) for size in rng.integers(7, size=rng.integers(1, 4)).tolist()
        ]
        rows = [each | {"time_s": {"*": dict.fromkeys(range(1, inputs + 1), 1.0)}} for each in rows]
        pairs = [(f"v{u}", f"v{v}") for u in range(len(rows)) for v in range(u + 1, len(rows)) if rng.random() < 0.5]
        graph = rlinit.Graph.build([(f"v{v}", each) for v, each in enumerate(rows)], pairs)
        memories, sizes = rng.integers(2, 30, d).tolist(), rng.integers(1, inputs + 1, (d, 2)).tolist()
        devices = [
            Device(f"d{i}", memory_bytes=memory, batch_sizes=tuple(sorted(set(each))))
            for i, (memory, each) in enumerate(zip(memories, sizes, strict=True))
        ]
        hardware = Hardware(tuple(devices), rng.choice([0.0, 4.0], (d, d)), np.zeros((d, d)), "drawn")
        options = {"objective": "throughput", "inputs": inputs, "resident": str(rng.choice(["peak", "tensors"]))}
        plan = rlinit.schedule(graph, hardware, **options)  # type: ignore[arg-type]
        costs = costs_of(fuzz.Case(number, graph, hardware, options), 0, (check.ZERO,) * 3)
        told = _refutation(costs) is not None, Proof(PlacementProgram(costs), 1, Budget(5.0)).run()
        assert not any(told) or plan.values is None, number
        assert all(told) or plan.values is not None or most == 2, number
        statuses.append(plan.status)
    assert min(statuses.count("infeasible"), statuses.count("optimal")) >= 6


def test_chunks_and_scattered_ops_have_proofs() -> None:
    """Three ops of two bytes on two devices of three: chunks and stages in any order do not help, nor does sharing."""
    graph = rlinit.Graph.build([(f"v{v}", row(2.0)) for v in range(3)], [])
    for asked in ({"chunks": 2}, {"contiguous": False}, {}):
        devices = [Device(name, memory_bytes=3.0, shares="" if asked else "bus") for name in "xy"]
        hardware = Hardware.mesh(devices, 1.0)
        hardware = hardware if asked else dataclasses.replace(hardware, sharing={"bus": (1.0, 2.0)})
        _, files = certified(graph, hardware, objective="pipeline", **asked)
        assert files["certificate"]["levels"][0]["kind"] == "places"
        assert answer(files).endswith(": infeasible")
        wide = [device | {"memory_bytes": 4.0} for device in files["hardware"]["device"]]
        assert answer(files | {"hardware": files["hardware"] | {"device": wide}}).startswith("REFUTED")


def test_without_a_proof_nothing_is_written(tmp_path: Path) -> None:
    """A plan that says it is infeasible, of a problem with a schedule: certify says that there is no proof, and why."""
    graph = rlinit.Graph.build([("a", row(9.0))], [])
    plan = rlinit.schedule(graph, mesh(3.0), objective="latency")
    other = dataclasses.replace(plan_of(plan, mesh(99.0)), hardware_fingerprint=mesh(99.0).fingerprint())
    with pytest.raises(InvalidPlan, match="no proof was found that there is no schedule"):
        other.certify(tmp_path / "c.json", graph, mesh(99.0))
    assert not (tmp_path / "c.json").exists()


def test_a_folder_of_an_infeasible_plan_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--certify`` writes the four files of a problem without a schedule, and `rlinit verify` reads them."""
    rlinit.Graph.build([("a", row(9.0))], []).save(tmp_path / "g.json")
    mesh(3.0).save(tmp_path / "h.json")
    command = ["schedule", str(tmp_path / "g.json"), "--hw", str(tmp_path / "h.json"), "--objective", "latency"]
    assert main([*command, "--certify", str(tmp_path / "proof")]) == 3
    assert main(["verify", str(tmp_path / "proof")]) == 0
    paths = str(tmp_path / "x.vipr"), str(tmp_path / "x.pbp")
    assert main([*command, "--certify-vipr", paths[0], "--certify-veripb", paths[1]]) == 3
    assert "x.pbp proves that there is no schedule" in " ".join(capsys.readouterr().err.split())
    assert least_of(tmp_path) == (1, 1)
    assert main(["verify", str(tmp_path / "proof")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": infeasible")


def test_a_circle_of_forced_stages_is_proven_in_other_formats(tmp_path: Path) -> None:
    """A chain over x, y and x again, on devices in any order: the rows of paths and orders leave no pipeline."""
    rows = [row(forbidden=[other]) for other in "yxy"]
    graph = rlinit.Graph.build([(f"v{v}", each) for v, each in enumerate(rows)], [("v0", "v1"), ("v1", "v2")])
    plan = rlinit.schedule(graph, mesh(9.0), objective="pipeline")
    assert plan.status == "infeasible"
    plan.certify_vipr(tmp_path / "x.vipr", graph, mesh(9.0))
    plan.certify_veripb(tmp_path / "x.pbp", graph, mesh(9.0))
    assert least_of(tmp_path) == (1, 1)


def test_devices_without_a_link_are_proven_in_other_formats(tmp_path: Path) -> None:
    """Ops that only different devices run, and no path between these: `latency` has no schedule, but with a link."""
    rows = [row(forbidden=[other]) for other in "yx"]
    graph = rlinit.Graph.build([(f"v{v}", each) for v, each in enumerate(rows)], [("v0", "v1")])
    apart = dataclasses.replace(mesh(9.0), bandwidth=np.zeros((2, 2)))
    plan = rlinit.schedule(graph, apart, objective="latency")
    assert plan.status == "infeasible"
    plan.certify_vipr(tmp_path / "x.vipr", graph, apart)
    plan.certify_veripb(tmp_path / "x.pbp", graph, apart)
    assert least_of(tmp_path) == (1, 1)
    with pytest.raises(InvalidPlan, match="no tree over memory, devices and order"):
        plan_of(plan, mesh(9.0)).certify_vipr(tmp_path / "y.vipr", graph, mesh(9.0))


def plan_of(plan: Plan, hardware: Hardware) -> Plan:
    """Return a plan that says that it is for other hardware."""
    return dataclasses.replace(plan, hardware=hardware.name, hardware_fingerprint=hardware.fingerprint())
