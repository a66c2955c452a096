"""PipeDream's published plans on 16 devices: VGG16 as 15 replicas of the convolutions and one device, ResNet50 as 16.

Narayanan et al.: PipeDream, SOSP 2019, table 1 (configurations "15-1" and "16", 10 Gb/s between servers); the profiles
are those of its repository (MIT license), with each layer of VGG16 and what follows it up to the next as one op, and
each block of ResNet50.
"""

from __future__ import annotations

from itertools import pairwise

import rlinit
from rlinit.plan import Plan

VGG16 = [
    ("input", 17.972, 77070336, 0),
    ("conv1_1", 56.919, 1644167168, 7168),
    ("conv1_2", 178.671, 411041792, 147712),
    ("conv2_1", 59.9, 822083584, 295424),
    ("conv2_2", 85.573, 205520896, 590336),
    ("conv3_1", 31.906, 411041792, 1180672),
    ("conv3_2", 47.584, 411041792, 2360320),
    ("conv3_3", 53.685, 102760448, 2360320),
    ("conv4_1", 25.545, 205520896, 4720640),
    ("conv4_2", 38.786, 205520896, 9439232),
    ("conv4_3", 43.551, 51380224, 9439232),
    ("conv5_1", 14.039, 51380224, 9439232),
    ("conv5_2", 12.119, 51380224, 9439232),
    ("conv5_3", 14.107, 12845056, 9439232),
    ("fc6", 7.457, 2097152, 411058176),
    ("fc7", 1.752, 2097152, 67125248),
    ("fc8", 0.941, 512000, 16388000),
]
"""(op, ms of both passes, bytes of its output, bytes of its parameters)."""

RESNET50 = [
    ("input", 18.962, 77070336, 0),
    ("conv1", 26.909, 102760448, 38144),
    ("conv2_1", 42.943, 411041792, 300032),
    ("conv2_2", 33.091, 411041792, 281600),
    ("conv2_3", 35.595, 411041792, 281600),
    ("conv3_1", 46.271, 205520896, 1517568),
    ("conv3_2", 20.324, 205520896, 1120256),
    ("conv3_3", 19.802, 205520896, 1120256),
    ("conv3_4", 21.573, 205520896, 1120256),
    ("conv4_1", 40.07, 102760448, 6049792),
    ("conv4_2", 17.383, 102760448, 4468736),
    ("conv4_3", 16.34, 102760448, 4468736),
    ("conv4_4", 16.279, 102760448, 4468736),
    ("conv4_5", 16.184, 102760448, 4468736),
    ("conv4_6", 17.325, 102760448, 4468736),
    ("conv5_1", 35.433, 51380224, 24158208),
    ("conv5_2", 17.001, 51380224, 17850368),
    ("conv5_3", 19.25, 51380224, 17850368),
    ("fc", 1.646, 512000, 8196000),
]
"""The same; each block ends where its sum is activated."""


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
