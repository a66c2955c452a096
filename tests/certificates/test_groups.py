"""Certificates of stages of several devices: against every plan there is, and after mutations."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.certificates import certificate_of, check
from rlinit.datasets import piper
from rlinit.datasets.published.location import instances_root
from rlinit.errors import RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.plan import Exchange, GroupRules
from rlinit.stages.groups.lowering import lower_groups
from tests.certificates import attack
from tests.draws import draws
from tests.exact.stages.groups.test_groups import AUTO, MIXED, cluster, drawn, least_value, unlike


def problem_of(graph: rlinit.Graph, hardware: Hardware, rules: dict[str, Any]) -> check.Groups:
    """Return a problem as the checker reads it."""
    raw = (
        check.parse(json.dumps(data), f"rlinit-{form}", form)
        for data, form in ((graph.to_dict(), "graph"), (hardware.to_dict(), "hardware"))
    )
    plan = check.parse(json.dumps({"groups": rules}), "rlinit-plan", "plan")
    return check.Groups(plan, check.Graph(next(raw)), check.Hardware(next(raw)))


@settings(max_examples=draws(30), deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 4, 6]),
    st.sampled_from(["", "1f1b", "gpipe"]), st.sampled_from([6.0, 15.0, 40.0, math.inf]),
    st.sampled_from([1e-9, 1.0, 1e12]), st.sampled_from(get_args(Exchange)), st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([1, 2, 2, 3]), st.booleans(),
)  # fmt: skip
def test_states_prove_the_optimum_and_nothing_above(
    seed: int, n: int, devices: int, microbatches: int, training: str, memory: float, scale: float,
    exchange: Exchange, nodes: int, kinds: int, mixed: bool,
) -> None:  # fmt: skip
    """No row of stages is below the least of all plans, some row is below a little more, or none fits at all."""
    graph = drawn(seed, n, scale, exchange, kinds=kinds)
    hardware = cluster(devices, nodes, memory, scale, kinds)
    taken = graph.extras[0]["note"]["workspace_bytes"]
    rules = GroupRules(training, microbatches, exchange=exchange, workspace_bytes=taken, mixed=mixed)
    try:
        lowered = lower_groups(graph, hardware, rules).problem
    except RlinitError:  # no degree divides the devices for some op
        return
    known = least_value(lowered)
    asked = {"training": training, "microbatches": microbatches, "exchange": exchange, "workspace_bytes": taken}
    asked["mixed"] = mixed
    problem = problem_of(graph, hardware, asked)
    assert (check.group_states(problem, None) is None) == (known < math.inf)
    options: dict[str, Any] = {"training": training or None, "microbatches": microbatches, "recompute": "auto"}
    plan = rlinit.schedule(graph, hardware, **{**AUTO, **options, **({"replicas": "mixed"} if mixed else {})})
    files = (plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware))
    told = attack.verdict(dict(zip(attack.FILES, files, strict=True)))
    assert told.startswith("VERIFIED (exact) pipeline of stages")
    assert told.endswith(": infeasible") == (known == math.inf)
    if known == math.inf:
        return
    if known > 0:
        assert check.group_states(problem, Fraction(known) * (1 - check.ROUNDING)) is not None
        assert check.prove_area({}, problem) <= Fraction(known) * (1 + check.ROUNDING)
    assert check.group_states(problem, Fraction(known) * (1 + check.ROUNDING) + Fraction(1, 10**30)) is None


@settings(max_examples=draws(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 60), st.integers(0, 60))
def test_options_are_chosen_exactly(seed: int, k: int, seconds: int, room: int) -> None:
    """A choice below the seconds that fits is found where there is one, by relaxation, rounding or listing."""
    draw = np.random.default_rng(seed)
    rows = [
        ([tuple(draw.integers(0, 12, 2).tolist()) for _ in range(draw.integers(1, 4))], int(draw.integers(1, 4)))
        for _ in range(k)
    ]
    sums = {(0, 0)}
    for own, count in rows:
        for _ in range(count):
            sums = {(a + x, b + y) for a, b in sums for x, y in own}
    search = check.GroupStates.__new__(check.GroupStates)
    assert search.chosen(rows, seconds, room) == any(a < seconds and b <= room for a, b in sums)


def layers(count: int) -> tuple[rlinit.Graph, Hardware]:
    """Return a chain of equal layers that pay in seconds for what they do not hold, and eight devices in two nodes."""
    one = {"time_s": 4.0, "param_bytes": 2.0, "held_bytes": 6.0, "fixed_bytes": 1.0}
    less = {"name": "recomputed", "time_s": 5.0, "param_bytes": 2.0, "held_bytes": 1.0, "fixed_bytes": 2.0}
    ops = []
    for v in range(count):
        around = {f"o{u}": 1.0 for u in (v - 1, v + 1) if 0 <= u < count}
        ops.append((f"o{v}", {"menu": {1: [one, less], 2: [{**one, "time_s": 2.2, "sync_bytes": around}]}}))
    graph = rlinit.Graph.build(ops, [(f"o{v}", f"o{v + 1}", 1.0) for v in range(count - 1)])
    devices = [Device(f"d{i}", memory_bytes=30.0, node=f"n{i // 4}") for i in range(8)]
    rates = np.array([[16.0 if i // 4 == j // 4 else 4.0 for i in range(8)] for j in range(8)])
    return graph, Hardware(tuple(devices), rates, np.full((8, 8), 0.01), "two nodes")


ASKED: dict[str, Any] = {**AUTO, "training": "1f1b", "microbatches": 12, "recompute": "auto"}


@cache
def certified(**options: Any) -> str:
    """Return the four files of six layers as JSON."""
    graph, hardware = layers(6)
    plan = rlinit.schedule(graph, hardware, **{**ASKED, **options})
    written = (plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware))
    return json.dumps(dict(zip(attack.FILES, written, strict=True)))


RULES: list[dict[str, Any]] = [
    {"replicas": 2}, {"tensor_parallel": 2}, {"uniform": True}, {"training": "gpipe"}, {"training": None},
    {"recompute": "none"}, {"recompute": "all"},
]  # fmt: skip


@pytest.mark.parametrize("options", RULES, ids=str)
def test_what_was_asked_for_is_proven(options: dict[str, Any]) -> None:
    """Plans under every rule are verified exactly, and no better than without."""
    files = json.loads(certified(**options))
    assert attack.verdict(files).startswith("VERIFIED (exact) pipeline of stages of several devices")
    assert attack.verdict(files).endswith("optimal")
    (value,), (free,) = (json.loads(text)["plan"]["values"] for text in (certified(**options), certified()))
    assert options.get("training", "1f1b") != "1f1b" or value >= free


@cache
def certified_mixed() -> str:
    """Return the four files of replicas of a stage on devices of two kinds."""
    graph, hardware = unlike()
    plan = rlinit.schedule(graph, hardware, **MIXED)
    written = (plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware))
    return json.dumps(dict(zip(attack.FILES, written, strict=True)))


def test_mutated_shares_are_refused() -> None:
    """No figure of a share may differ, no replica change its kind, and mixed replicas have to be asked for."""
    files = json.loads(certified_mixed())
    assert attack.verdict(files).startswith("VERIFIED (exact)")
    assert attack.verdict(files).endswith("optimal")
    bad: list[tuple[Any, ...]] = [("plan", "groups", "mixed", False), ("plan", "groups", "uniform", True)]
    bad += [("plan", "stages", 0, "shares", files["plan"]["stages"][0]["shares"][at]) for at in (slice(1), slice(0))]
    for at, share in enumerate(files["plan"]["stages"][0]["shares"]):
        for key, value in share.items():
            spot = ("plan", "stages", 0, "shares", at, key)
            if isinstance(value, float | int):
                bad += [(*spot, value + 1), (*spot, value - 1)]
        bad += [(*spot[:-1], "kind", kind) for kind in ("fast", "slow", "other") if kind != share["kind"]]
        bad += [(*spot[:-1], "variants", op, "other") for op in share["variants"]]
        bad += [(*spot[:-1], "speed", 1.0)]
    for *path, value in bad:
        other = json.loads(certified_mixed())
        spot = other
        for key in path[:-1]:
            spot = spot[key]
        spot[path[-1]] = value
        assert attack.verdict(other) == "", (path, value)


def test_mutated_plans_and_certificates_are_refused() -> None:
    """No figure, replica, degree, variant, device or bound may differ, and no state be missing."""
    files = json.loads(certified())
    assert attack.verdict(files).startswith("VERIFIED (exact)")
    bad: list[tuple[Any, ...]] = [
        ("plan", "values", 0, files["plan"]["values"][0] * (1 - 1e-8)),
        ("plan", "values", 0, files["plan"]["values"][0] * (1 + 1e-8)),
        ("plan", "bounds", 0, files["plan"]["values"][0] * (1 + 2e-9)),
        ("certificate", "levels", 0, "states", files["certificate"]["levels"][0]["states"] - 1),
        ("certificate", "levels", 0, "states", files["certificate"]["levels"][0]["states"] + 1),
        ("certificate", "levels", 0, "kind", "states"),
        ("certificate", "levels", 0, "kind", "load"),
        ("certificate", "levels", 0, "kind", "area"),
        ("certificate", "levels", 0, "threshold", str(Fraction(files["plan"]["values"][0]) * (1 + check.ROUNDING))),
        ("certificate", "levels", 0, {"kind": "groups", "states": files["certificate"]["levels"][0]["states"]}),
    ]
    for j, row in enumerate(files["plan"]["stages"]):
        for key, value in row.items():
            at = ("plan", "stages", j, key)
            if isinstance(value, float | int):
                bad.append((*at, value + 1))
        for op, chosen in row["variants"].items():
            names = {"plain", "recomputed", "other"} - {chosen}
            bad += [("plan", "stages", j, "variants", op, name) for name in sorted(names)]
        bad += [
            ("plan", "stages", j, "devices", 0, name) for name in ("x", files["plan"]["stages"][j - 1]["devices"][0])
        ]
        bad.append(("plan", "stages", j, "device", "x"))
    bad += [("plan", "assignment", op, stage) for op in files["plan"]["assignment"] for stage in (-1, 99)]
    for *path, value in bad:
        other = json.loads(certified())
        spot = other
        for key in path[:-1]:
            spot = spot[key]
        spot[path[-1]] = value
        assert attack.verdict(other) == "", (path, value)


def test_a_better_bound_than_there_is_has_no_proof() -> None:
    """Thresholds above the optimum are refused, whatever count of states is told; graphs of many sets take too long."""
    files = json.loads(certified())
    read = attack.exact(files)
    problem = check.Groups(*read[:3])
    value = check.exact_values(*read[:3])[0]
    for above in (Fraction(1, 10**12), Fraction(1, 10**6), Fraction(1)):
        assert check.group_states(problem, value * (1 + above)) is None
        for count in (0, files["certificate"]["levels"][0]["states"]):
            with pytest.raises(check.Refuted, match="whole row"):
                check.prove({"kind": "groups", "threshold": str(value * (1 + above)), "states": count}, problem)
    bare: dict[str, Any] = {"assignment": None, "values": None, "bounds": None, "stages": [], "status": "infeasible"}
    for proof in ({"kind": "groups", "states": 9}, {"kind": "area"}, {"kind": "room", "multipliers": []}, None):
        lie = files | {"plan": files["plan"] | bare, "certificate": files["certificate"] | {"levels": [proof]}}
        assert attack.verdict(lie) == ""
    ops = [(f"o{v}", {"menu": {1: [{"time_s": 1.0 + v % 3}]}}) for v in range(40)]
    graph, hardware = rlinit.Graph.build(ops, []), Hardware.mesh([Device(f"d{i}") for i in range(4)], 1.0)
    plan = rlinit.schedule(graph, hardware, **AUTO, time_limit_s=2.0)
    certificate = certificate_of(plan, graph, hardware)
    written = dict(zip(attack.FILES, (plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate), strict=True))
    assert certificate["levels"] == [{"kind": "area"}]
    assert attack.verdict(written).startswith("VERIFIED (exact)")


@pytest.mark.skipif(instances_root() is None, reason="the published instances are not at hand")
@pytest.mark.parametrize(("devices", "gib"), [(8, 4), (8, 8), (128, 2), (512, 8)])
def test_optima_of_piper_are_verified_without_rlinit(devices: int, gib: int, tmp_path: Path) -> None:
    """A Python without packages verifies them by the checker alone, in a second or two."""
    root = instances_root()
    assert root is not None
    graph, hardware = piper.load(
        root / "piper" / "bert32a100.json",
        devices=devices, memory_bytes=gib * 2.0**30, bandwidth=25 * 2.0**30, microbatches=1920,
    )  # fmt: skip
    plan = rlinit.schedule(graph, hardware, **AUTO)
    assert plan.certify(tmp_path / "certificate.json", graph, hardware) == ()
    for name, data in (("plan", plan), ("graph", graph), ("hardware", hardware)):
        data.save(tmp_path / f"{name}.json")
    shutil.copy(str(check.__file__), tmp_path / "check.py")
    command = [sys.executable, "-I", "-S", str(tmp_path / "check.py")]
    ran = subprocess.run(
        [*command, *(str(tmp_path / f"{name}.json") for name in attack.FILES)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout.startswith("VERIFIED (exact) pipeline of stages of several devices"), ran
    assert ran.stdout.strip().endswith("infeasible" if gib == 4 else "optimal")


def test_a_note_of_another_form_is_an_error() -> None:
    """Bytes that a stage needs beside its ops go by degree."""
    op = {"menu": {1: [{"time_s": 1.0}]}, "note": {"workspace_bytes": 1.0}}
    hardware = rlinit.Hardware.mesh([rlinit.Device("d0"), rlinit.Device("d1")], 1.0)
    with pytest.raises(RlinitError, match="expected bytes by degree"):
        rlinit.schedule(rlinit.Graph.build([("a", op)], []), hardware, objective="pipeline", replicas="auto")
