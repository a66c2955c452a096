"""PipeDream's published plans on 16 devices: VGG16 as 15 replicas of the convolutions and one device, ResNet50 as 16.

Narayanan et al.: PipeDream, SOSP 2019, table 1 (configurations "15-1" and "16", 10 Gb/s between servers); the profiles
are those of its repository (MIT license), with each layer of VGG16 and what follows it up to the next as one op, and
each block of ResNet50.
"""

from __future__ import annotations

from itertools import pairwise

import rlinit
from benchmarks.components.pipedream_profiles import RESNET50, VGG16
from rlinit.plan import Plan


def planned(profile: list[tuple[str, float, int, int]]) -> Plan:
    """Return the best plan for 16 devices."""
    ops = [
        (op, {"out_bytes": made, "menu": {1: [{"name": "plain", "time_s": ms / 1e3, "param_bytes": held}]}})
        for op, ms, made, held in profile
    ]
    ops[0][1]["note"] = {"exchange": "server"}
    graph = rlinit.Graph.build(ops, [(u[0], v[0]) for u, v in pairwise(profile)])
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"gpu{i}") for i in range(16)], 10e9 / 8)
    plan = rlinit.schedule(graph, hardware, replicas="auto", tensor_parallel="auto", training="1f1b", microbatches=240)
    assert plan.status == "optimal"
    return plan


def test_vgg16_on_16_devices_is_cut_before_its_large_matrices() -> None:
    """15 replicas and 1, as published; 16 replicas of all of it send each other more."""
    plan = planned(VGG16)
    assert [stage.replicas for stage in plan.stages] == [15, 1]
    assert plan.assignment is not None
    assert min(op for op, stage in plan.assignment.items() if stage == 1).startswith("fc")
    whole = plan.baselines["data parallel"]
    assert whole is not None
    assert whole > 1.05 * plan.value


def test_resnet50_on_16_devices_is_16_replicas_of_all_of_it() -> None:
    """Its parameters are small beside its activations, so that data parallelism alone is best, as published."""
    plan = planned(RESNET50)
    assert [stage.replicas for stage in plan.stages] == [16]
    assert plan.value == plan.baselines["data parallel"]
