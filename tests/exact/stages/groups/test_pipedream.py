"""PipeDream's published plan for VGG16 on 16 devices: 15 replicas of the convolutions, then one device.

Narayanan et al.: PipeDream, SOSP 2019, table 1 (configuration "15-1", 10 Gb/s between servers); the profile is that of
its repository (MIT license), with each layer and what follows it up to the next as one op.
"""

from __future__ import annotations

from itertools import pairwise

import rlinit

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


def test_vgg16_on_16_devices_is_cut_before_its_large_matrices() -> None:
    """15 replicas and 1, as published; 16 replicas of all of it send each other more."""
    ops = [
        (op, {"out_bytes": made, "menu": {1: [{"name": "plain", "time_s": ms / 1e3, "param_bytes": held}]}})
        for op, ms, made, held in VGG16
    ]
    ops[0][1]["note"] = {"exchange": "server"}
    graph = rlinit.Graph.build(ops, [(u[0], v[0]) for u, v in pairwise(VGG16)])
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"gpu{i}") for i in range(16)], 10e9 / 8)
    plan = rlinit.schedule(
        graph,
        hardware,
        objective="pipeline",
        replicas="auto",
        tensor_parallel="auto",
        training="1f1b",
        microbatches=240,
    )
    assert plan.status == "optimal"
    assert [stage.replicas for stage in plan.stages] == [15, 1]
    assert plan.assignment is not None
    assert min(op for op, stage in plan.assignment.items() if stage == 1).startswith("fc")
    whole = plan.baselines["data parallel"]
    assert whole is not None
    assert whole > 1.05 * plan.value
