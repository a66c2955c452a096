"""Every field that a plan, graph or hardware may have: who says that it is true, by the checker's own table."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import certificate_of, check
from rlinit.devices.efficiency import efficiencies_of
from rlinit.hardware import Device, Hardware
from tests.certificates import attack

REFUTED = ("chosen", "computed", "proven", "fixed")


def table() -> dict[tuple[str, str], str]:
    """Return (file or part of one, field) -> who says that it is true."""
    text = (check.__doc__ or "").partition("Who says that a field is true")[2].partition("\n\n")[2]
    found: dict[tuple[str, str], str] = {}
    fields: list[str] = []
    part = ""
    for line in text.splitlines():
        part = line[:16].strip() or part
        words, _, who = line[16:].partition("  ")
        fields += words.split()
        if who:
            found |= {(part, field): re.split("[ :;]", who)[0] for field in fields}
            fields = []
    return found


TABLE = table()


def test_every_field_that_a_file_may_have_is_in_the_table() -> None:
    """No field is read, or passed over, without a line that says who answers for it."""
    listed = {part: {field for where, field in TABLE if where == part} for part, _ in TABLE}
    plan = json.loads(resources.files("rlinit").joinpath("schemas", "plan.schema.json").read_text())
    assert listed["plan"] == check.PLAN_KEYS == set(plan["properties"])
    assert listed["graph"] == check.GRAPH_KEYS
    assert listed["op"] == check.OP_KEYS
    assert listed["hardware"] == check.HARDWARE_KEYS
    assert listed["device"] == check.DEVICE_KEYS
    assert listed["link"] == check.LINK_KEYS
    assert listed["certificate"] == check.CERTIFICATE_KEYS
    assert set(TABLE.values()) == {*REFUTED, "asked", "unread"}


def grouped() -> list[Any]:
    """Return plan, graph, hardware and certificate of stages of several devices."""
    one = {"time_s": 4.0, "param_bytes": 2.0, "held_bytes": 6.0, "fixed_bytes": 1.0}
    menu = {1: [one, {"name": "recomputed", "time_s": 5.0, "held_bytes": 1.0}], 2: [{"time_s": 1.5, "held_bytes": 3.0}]}
    graph = rlinit.Graph.build([("a", {"menu": menu}), ("b", {"menu": menu})], [("a", "b", 1.0)])
    hardware = Hardware.mesh([Device(f"d{i}", "gpu", 9.0, node=f"n{i // 2}") for i in range(4)], 8.0)
    asked: Any = {"replicas": "auto", "tensor_parallel": "auto", "training": "1f1b", "microbatches": 4}
    plan = rlinit.schedule(graph, hardware, recompute="auto", **asked)
    return [plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware)]


def trained() -> list[Any]:
    """Return plan, graph, hardware and certificate of a training pipeline that fits only where layers were smaller."""
    marks = {"a": {"module": "layers.0.x"}, "b": {"module": "layers.0.x"}, "d": {"module": "layers.1.x"}}
    ops = [(name, {"time_s": 1.0, "param_bytes": 1.0, "out_bytes": size, **marks.get(name, {"node": "layers.1.x/c"})})
           for name, size in zip("cdab", (8.0, 1.0, 8.0, 1.0), strict=True)]  # fmt: skip
    graph = rlinit.Graph.build(ops, [("a", "b"), ("b", "c"), ("c", "d")])
    hardware = Hardware.mesh([Device("x", memory_bytes=24.5)], 1.0)
    plan = rlinit.schedule(graph, hardware, training="gpipe", microbatches=2, recompute="auto", optimizer=1.0)
    return [plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware)]


@cache
def base(objective: Any, *, mesh: bool = False, several: bool = False) -> str:
    """Return four files of a problem in which every field of its kind matters, as JSON.

    `mesh` gives it no links, `several` stages of several devices.
    """
    if several:
        return json.dumps(dict(zip(attack.FILES, grouped(), strict=True)))
    if objective == "training":
        return json.dumps(dict(zip(attack.FILES, trained(), strict=True)))
    timed = objective == "throughput"
    times = {"time_s": {"*": {1: 1.0, 2: 1.5}}} if timed else {}
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"op": "matmul", "flops": 256.0, "param_bytes": 16.0, "out_bytes": 4.0, "forbidden": ["right"], **times}),
        ("b", {"op": "matmul", "flops": 256.0, "param_bytes": 4.0, "out_bytes": 2.0, "forbidden": ["left"], **times}),
    ]
    ops[1][1]["colocate"] = "g"
    for _, row in ops:
        row["shared"] = {"w": 2.0}
    share = efficiencies_of({"matmul": {"flops": 0.5}})
    devices = [
        Device(name, kind, 40.0, 8.0, {"fp32": 16.0, "fp16": 32.0}, 1.0, 0.5, reserve_bytes=2.0, efficiency=share,
               batch_sizes=(1, 2) if timed else None)
        for name, kind in (("x", "left"), ("y", "right"))
    ]  # fmt: skip
    graph = rlinit.Graph.build(ops, [("a", "b")])
    rule: dict[str, Any] = {} if objective in ("pipeline", "memory") else {"transfers": "exclusive"}
    if objective == "throughput":
        rule |= {"inputs": 2, "resident": "tensors"}
    rates = np.full((2, 2), 8.0) + np.array([[0.0, 0.0], [0.0 if mesh else 1.0, 0.0]])
    hardware = Hardware(tuple(devices), rates, np.full((2, 2), 0.25), "pair")
    plan = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=5.0, **rule)
    certificate = certificate_of(plan, graph, hardware)
    written = hardware.to_dict()
    if mesh:
        del written["link"]
        written |= {"bandwidth": 8.0, "latency_s": 0.25}
    return json.dumps(dict(zip(attack.FILES, (plan.to_dict(), graph.to_dict(), written, certificate), strict=True)))


LATENCY: Any = ("latency",)
PIPELINE: Any = ("pipeline",)
THROUGHPUT: Any = ("throughput",)
MESH: Any = ("latency", True)
GROUPS: Any = ("pipeline", False, True)
TRAINING: Any = ("training",)
TRAINED = {
    "schedule": "gpipe",
    "microbatches": 2,
    "recompute": "auto",
    "state_factor": 1.0,
    "step_s": 0.0,
    "stages": [],
}

EDITS: dict[tuple[str, str], list[tuple[Any, Any]]] = {
    ("plan", "format"): [(LATENCY, "rlinit-graph")],
    ("plan", "version"): [(LATENCY, 2)],
    ("plan", "objective"): [(LATENCY, "throughput"), (PIPELINE, "memory")],
    ("plan", "inputs"): [(THROUGHPUT, 4), (LATENCY, 2)],
    ("plan", "transfer_rule"): [(LATENCY, "blocking"), (LATENCY, "parallel"), (PIPELINE, "exclusive")],
    ("plan", "resident"): [(LATENCY, "weights"), (LATENCY, "tensors"), (THROUGHPUT, "peak"), (PIPELINE, "peak")],
    ("plan", "assignment"): [(LATENCY, {"a": "y", "b": "y"}), (PIPELINE, {"a": 0, "b": 0}), (LATENCY, None)],
    ("plan", "batches"): [(LATENCY, []), (PIPELINE, [{}])],
    ("plan", "transfers"): [(LATENCY, []), (PIPELINE, [{}])],
    ("plan", "stages"): [(PIPELINE, []), (LATENCY, [{}]), (GROUPS, [])],
    ("plan", "start_s"): [(LATENCY, {"a": 1.0, "b": 7.0}), (PIPELINE, {"a": 0.0})],
    ("plan", "devices"): [(LATENCY, []), (PIPELINE, [{}])],
    ("plan", "values"): [(LATENCY, [1.0]), (PIPELINE, [1e3]), (PIPELINE, [])],
    ("plan", "shard_inputs"): [(THROUGHPUT, 2), (LATENCY, 2), (PIPELINE, 2)],
    ("plan", "status"): [(LATENCY, "feasible"), (PIPELINE, "infeasible"), (PIPELINE, "no_solution")],
    ("plan", "bounds"): [(LATENCY, [1.0]), (LATENCY, [1e3]), (PIPELINE, None)],
    ("plan", "chunks"): [(PIPELINE, 2), (LATENCY, 2)],
    ("plan", "contiguous"): [(PIPELINE, False), (LATENCY, False)],
    ("plan", "groups"): [
        (PIPELINE, {"training": "", "microbatches": 1}), (GROUPS, None),
        *((GROUPS, {"training": "1f1b", "microbatches": 4, **edit}) for edit in (
            {}, {"training": ""}, {"training": "gpipe"}, {"microbatches": 8}, {"recompute": "none"}, {"replicas": 2},
            {"tensor_parallel": 2}, {"uniform": True}, {"exchange": "server"}, {"workspace_bytes": {"1": 1.0}},
            {"mixed": True, "replicas": 2}))],
    ("plan", "training"): [(PIPELINE, {"schedule": "gpipe"}), *((TRAINING, {**TRAINED, **edit}) for edit in (
        {"schedule": "1f1b"}, {"microbatches": 3}, {"recompute": "none"}, {"state_factor": 1.5}, {"step_s": 1.0}))],
    ("plan", "stage_orders"): [(PIPELINE, [["a"], ["b"]]), (LATENCY, [["a"]])],
    ("plan", "graph_fingerprint"): [(LATENCY, "0")],
    ("plan", "hardware_fingerprint"): [(LATENCY, "0")],
    **{("plan", field): [(LATENCY, value)] for field, value in (
        ("graph", "g"), ("hardware", "h"), ("bound_source", "oracle"), ("method", "m"), ("message", "infeasible"),
        ("notes", ["n"]), ("history", []), ("phase_s", {"p": 1.0}), ("provenance", {"gap": 0.5}), ("graph_figures", {}),
        ("modules", {"a": "m"}), ("baselines", {"heft": 9.0}), ("baseline_notes", {}), ("chunk_order", "free"))},
    ("graph", "format"): [(LATENCY, "rlinit-plan")],
    ("graph", "version"): [(LATENCY, 2)],
    ("graph", "name"): [(LATENCY, "g")],
    ("graph", "int_names"): [(LATENCY, True)],
    ("graph", "ops"): [(LATENCY, [])],
    ("graph", "edges"): [(LATENCY, []), (PIPELINE, [["b", "a"]])],
    ("op", "name"): [(LATENCY, "c")],
    ("op", "op"): [(LATENCY, "relu")],
    ("op", "param_bytes"): [(LATENCY, 12.0), (THROUGHPUT, 12.0), (PIPELINE, 20.0)],
    ("op", "shared"): [(LATENCY, {"w": 3.0}), (PIPELINE, {"w": "2"}), (THROUGHPUT, {"w": 17.0})],
    ("op", "out_bytes"): [(LATENCY, 5.0), (THROUGHPUT, 3.0), (PIPELINE, 8.0)],
    ("op", "flops"): [(("latency",), 1e4), (PIPELINE, 1e4)],
    ("op", "time_s"): [(LATENCY, {"*": 1.0}), (THROUGHPUT, {"*": {"1": 1.0, "2": 1.25}}), (PIPELINE, 0.5)],
    ("op", "colocate"): [(LATENCY, "g")],
    ("op", "forbidden"): [(LATENCY, ["x"]), (PIPELINE, ["x", "y"])],
    ("op", "outputs"): [(LATENCY, {"p": 3.0}), (THROUGHPUT, {"p": 3.0}), (LATENCY, [["float16", 2]])],
    ("op", "view"): [(LATENCY, True), (PIPELINE, True)],
    ("op", "precision"): [(LATENCY, ["fp16", "fp16"]), (PIPELINE, ["fp16", None])],
    ("op", "backward_of"): [(PIPELINE, "b")],
    **{("op", field): [(LATENCY, value), (PIPELINE, value)] for field, value in (
        ("backward_time_s", 1.0), ("nodes", ["n"]), ("axes", {"view": True}), ("operands", [["", 2]]),
        ("constant_bytes", 4.0), ("holds", ["w"]), ("tensors", ["t"]), ("label", "l"), ("note", {"cost": 1.0}))},
    **{("op", field): [(TRAINING, value)] for field, value in (("node", "n"), ("module", "m"), ("scopes", [["m"]]))},
    ("op", "menu"): [
        (GROUPS, {"1": [{"name": "plain", "time_s": 1.0}]}), (GROUPS, {}), (GROUPS, {"0": [], "1": []}),
        *((GROUPS, {"1": [{"name": "plain", "time_s": 4.0}], "3": rows}) for rows in (
            [], [{"name": "plain"}], [{"time_s": 1.0}], [{"name": "plain", "time_s": True}],
            [{"name": "plain", "time_s": 1.0, "size": 1.0}], [{"name": "plain", "time_s": 1.0}] * 2))],
    ("hardware", "format"): [(LATENCY, "rlinit-plan")],
    ("hardware", "name"): [(LATENCY, "h")],
    ("hardware", "device"): [(LATENCY, []), (PIPELINE, [])],
    ("hardware", "link"): [(LATENCY, [])],
    ("hardware", "bandwidth"): [(MESH, 4.0), (MESH, "unlimited")],
    ("hardware", "latency_s"): [(MESH, 0.5)],
    ("hardware", "sharing"): [(PIPELINE, {"bus": [2.0]})],
    ("device", "name"): [(LATENCY, "z")],
    ("device", "kind"): [(LATENCY, "right"), (PIPELINE, "right")],
    ("device", "memory_bytes"): [(LATENCY, 21.0), (PIPELINE, 15.0), (THROUGHPUT, 20.0)],
    ("device", "cache_bytes"): [(PIPELINE, 12.0)],
    ("device", "reserve_bytes"): [(LATENCY, 39.0)],
    ("device", "flops_per_s"): [(LATENCY, 1.0), (PIPELINE, {"fp32": 1.0})],
    ("device", "bytes_per_s"): [(LATENCY, 0.25)],
    ("device", "launch_s"): [(LATENCY, 0.25), (PIPELINE, 0.75)],
    ("device", "io_bandwidth"): [(PIPELINE, 2.0), (PIPELINE, "unlimited")],
    ("device", "batch_sizes"): [(THROUGHPUT, [1])],
    ("device", "host_s"): [(LATENCY, 64.0), (PIPELINE, 64.0)],
    ("device", "slowdown"): [(LATENCY, 2.0), (PIPELINE, 2.0), (THROUGHPUT, 2.0)],
    ("device", "efficiency"): [(LATENCY, {"matmul": {"launch_s": 1.0}}), (LATENCY, {"matmul": {"bytes": 0.5}})],
    ("device", "node"): [(GROUPS, "host")],
    ("device", "shares"): [(LATENCY, "bus")],
    ("device", "cost_per_hour"): [(LATENCY, 3.0)],
    ("link", "from"): [(LATENCY, "z")],
    ("link", "to"): [(LATENCY, "z")],
    ("link", "bandwidth"): [(LATENCY, 4.0), (LATENCY, "unlimited")],
    ("link", "latency_s"): [(LATENCY, 0.5)],
    ("link", "one_way"): [(LATENCY, 0)],
    ("certificate", "format"): [(LATENCY, "rlinit-plan")],
    ("certificate", "version"): [(LATENCY, 2)],
    ("certificate", "graph_fingerprint"): [(LATENCY, "0")],
    ("certificate", "hardware_fingerprint"): [(LATENCY, "0")],
    ("certificate", "levels"): [(LATENCY, []), (LATENCY, [{"kind": "zero"}]), (PIPELINE, [{"kind": "op"}])],
    ("certificate", "trusted"): [(LATENCY, ["me"])],
}  # fmt: skip


def test_every_field_of_the_table_is_edited() -> None:
    """A new field needs an edit that shows what becomes of it."""
    assert set(EDITS) == set(TABLE)


@pytest.mark.parametrize(("part", "field"), TABLE, ids=lambda name: name)
def test_nobody_is_believed_but_who_the_table_names(part: str, field: str) -> None:
    """An edit of what is computed, chosen, proven or fixed is refused; one of what is asked changes the answer."""
    for (objective, *marks), value in EDITS[part, field]:
        form = (objective, *marks)
        files = json.loads(base(objective, **dict(zip(("mesh", "several"), marks, strict=False))))
        true = attack.verdict(files)
        assert true.startswith("VERIFIED (value only)" if form == THROUGHPUT else "VERIFIED (exact)")
        bad = copy.deepcopy(files)
        spot: Any = {"op": ("graph", "ops"), "device": ("hardware", "device"), "link": ("hardware", "link")}.get(part)
        (bad[part] if spot is None else bad[spot[0]][spot[1]][0])[field] = value
        told = attack.verdict(bad)
        who = TABLE[part, field]
        if who == "unread":
            assert told == true, (form, value)
        elif who == "asked":
            assert told != true, (form, value)
        else:
            assert told == "", (form, value)
