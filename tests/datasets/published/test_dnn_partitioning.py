"""The reader of dnn-partitioning's workloads: exact costs, devices, and every malformed field."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.datasets.published import dnn_partitioning
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph, InvalidHardware, RlinitError
from rlinit.stages.lowering import lower_stages
from tests.draws import draws


def node(i: int, **fields: Any) -> dict[str, Any]:
    """Return a node row."""
    row = {"id": i, "supportedOnFpga": 1, "cpuLatency": 10.0 * i, "fpgaLatency": 1.0 * i, "size": 100.0}
    return row | {"isBackwardNode": False} | fields


def workload() -> dict[str, Any]:
    """Return a small workload: 1 -> {2, 3} -> 4, listed backwards; 2 and 3 share a device, 4 needs a CPU."""
    return {
        "maxSizePerFPGA": 1000.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            node(4, supportedOnFpga=False, name="last"),
            node(3, colorClass=7),
            node(2, colorClass=7),
            node(1, colorClass=1),
        ],
        "edges": [
            {"sourceId": 1, "destId": 2, "cost": 0.5},
            {"sourceId": 1, "destId": 3, "cost": 0.5},
            {"sourceId": 2, "destId": 4, "cost": 1e-9},
            {"sourceId": 3, "destId": 4, "cost": 0.0},
        ],
    }


def write(folder: Path, data: Any) -> Path:
    """Write a workload and return its path."""
    path = folder / "small.json"
    path.write_text(json.dumps(data))
    return path


def test_a_small_workload_in_full(tmp_path: Path) -> None:
    """Every column of the graph and every figure of the devices."""
    graph, hardware = dnn_partitioning.load(write(tmp_path, workload()))
    assert graph.name == hardware.name == "small"
    assert graph.names == ("1", "2", "3", "4")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert graph.times["accelerator", 1].tolist() == [0.001, 0.002, 0.003, 0.004]
    assert graph.times["cpu", 1].tolist() == [0.01, 0.02, 0.03, 0.04]
    assert graph.param_bytes.tolist() == [100] * 4
    assert graph.colocation.tolist() == [-1, 0, 0, -1]
    assert graph.forbidden["accelerator"].tolist() == [False, False, False, True]
    assert graph.extras == {3: {"label": "last"}}
    bandwidth = hardware.devices[0].io_bandwidth
    assert bandwidth is not None
    assert (graph.out_bytes[:3] / bandwidth).tolist() == [0.0005, 1e-12, 0.0]
    assert math.isnan(graph.out_bytes[3])
    assert [(d.name, d.kind, d.memory_bytes, d.io_bandwidth) for d in hardware.devices] == [
        ("accelerator0", "accelerator", 1000.0, bandwidth),
        ("accelerator1", "accelerator", 1000.0, bandwidth),
        ("cpu0", "cpu", math.inf, math.inf),
    ]


def test_stage_costs_are_the_published_ones(tmp_path: Path) -> None:
    """Lowered for pipelines, an accelerator pays each tensor in and out, a CPU core neither, and memory binds."""
    problem = lower_stages(*dnn_partitioning.load(write(tmp_path, workload())), "pipeline").problem
    assert problem.work_s.tolist() == [[0.001, 0.005, np.inf], [0.01, 0.05, 0.04]]
    assert problem.in_s.tolist() == problem.out_s.tolist() == [[0.0005, 1e-12, 0.0], [0.0, 0.0, 0.0]]
    assert problem.memory_bytes.tolist() == [1000.0, np.inf]
    assert problem.param_bytes.tolist() == [100, 200, 100]


@settings(max_examples=draws(60), deadline=None)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e12)), min_size=1, max_size=6),
    st.one_of(st.none(), st.floats(1e-3, 1e3)),
)
def test_moving_costs_what_the_file_says(
    tmp_path_factory: pytest.TempPathFactory, costs: list[float], per_byte: float | None
) -> None:
    """out_bytes / bandwidth is the cost in seconds to the last bit, with sizes given, ill-fitting or absent."""
    data = workload() | {"nodes": [node(i) for i in range(len(costs) + 1)]}
    data["edges"] = [{"sourceId": i, "destId": i + 1, "cost": cost} for i, cost in enumerate(costs)]
    if per_byte is not None:
        for edge in data["edges"]:
            edge["size"] = edge["cost"] / per_byte
    graph, hardware = dnn_partitioning.load(write(tmp_path_factory.mktemp("workload"), data))
    bandwidth = hardware.devices[0].io_bandwidth
    assert bandwidth is not None
    assert (graph.out_bytes[:-1] / bandwidth).tolist() == [cost / 1000 for cost in costs]


def test_sizes_are_kept_where_one_bandwidth_explains_the_costs(tmp_path: Path) -> None:
    """Bytes on the edges become out_bytes with their bandwidth; where they do not fit, the unit is synthetic."""
    data = workload()
    for edge, size in zip(data["edges"], (4096.0, 4096.0, 0.0, 1024.0), strict=True):
        edge |= {"size": size, "cost": size * 1000 / 2**31}
    graph, hardware = dnn_partitioning.load(write(tmp_path, data))
    assert graph.out_bytes[:3].tolist() == [4096, 0, 1024]
    assert hardware.devices[0].io_bandwidth == 2**31
    data["edges"][3]["size"] = 1025.0
    graph, hardware = dnn_partitioning.load(write(tmp_path, data))
    assert hardware.devices[0].io_bandwidth == 1.0
    assert graph.out_bytes[0] == 4096 / 2**31


BROKEN: list[tuple[tuple[Any, ...], Any, str]] = [
    (("nodes",), None, "at nodes: must be array"),
    (("edges",), {}, "at edges: must be array"),
    (("nodes", 1), 5, r"at nodes\[1\]: must be object"),
    (("edges", 0), [], r"at edges\[0\]: must be object"),
    (("nodes", 0, "id"), "x", r"at nodes\[0\]\.id: must be integer"),
    (("nodes", 0, "id"), True, r"at nodes\[0\]\.id: must be integer"),
    (("nodes", 2, "fpgaLatency"), -1, r"at nodes\[2\]\.fpgaLatency: must be bigger than or equal to 0"),
    (("nodes", 2, "cpuLatency"), None, r"at nodes\[2\]\.cpuLatency: must be number"),
    (("nodes", 2, "size"), math.nan, "NaN is not a number JSON allows"),
    (("nodes", 2, "size"), math.inf, "Infinity is not a number JSON allows"),
    (("nodes", 2, "size"), 10**400, "100000000000... has 401 digits, too large to compute with"),
    (("nodes", 2, "size"), True, r"at nodes\[2\]\.size: must be number"),
    (("nodes", 2, "supportedOnFpga"), 2, r"at nodes\[2\]\.supportedOnFpga: must be one of"),
    (("nodes", 2, "isBackwardNode"), None, r"at nodes\[2\]\.isBackwardNode: must be one of"),
    (("nodes", 0, "isBackwardNode"), 1, "backward node 4 has colorClass None, which no forward node has"),
    (("nodes", 2, "colorClass"), "red", r"at nodes\[2\]\.colorClass: must be integer or null"),
    (("edges", 3, "sourceId"), 9, "unknown op '9'"),
    (("edges", 3, "destId"), 1.5, r"at edges\[3\]\.destId: must be integer"),
    (("edges", 3, "destId"), 3, "edge to itself"),
    (("edges", 3, "destId"), 1, "cycle"),
    (("edges", 1, "cost"), 0.25, "node 1 cost both 0.5 and 0.25"),
    (("edges", 1, "cost"), -0.5, r"at edges\[1\]\.cost: must be bigger than or equal to 0"),
    (("edges", 1, "size"), -1, r"at edges\[1\]\.size: must be bigger than or equal to 0"),
    (("edges", 1, "size"), 4, "node 1 have different sizes"),
    (("maxFPGAs",), -1, "at maxFPGAs: must be bigger than or equal to 0"),
    (("maxCPUs",), 1.5, "at maxCPUs: must be integer"),
    (("maxSizePerFPGA",), None, "at maxSizePerFPGA: must be number"),
    (("maxSizePerFPGA",), 0, "memory_bytes"),
]


@pytest.mark.parametrize(("where", "value", "message"), BROKEN)
def test_malformed_fields(tmp_path: Path, where: tuple[Any, ...], value: Any, message: str) -> None:
    """Each malformed field is refused by name."""
    data = copy.deepcopy(workload())
    target: Any = data
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    with pytest.raises(RlinitError, match=message) as caught:
        dnn_partitioning.load(write(tmp_path, data))
    assert isinstance(caught.value, InvalidGraph if message != "memory_bytes" else InvalidHardware)


def test_backward_nodes_name_their_forward_node(tmp_path: Path) -> None:
    """A backward node goes with the first forward node of its colour; edges of one source may differ in size there."""
    data = workload()
    data["nodes"] += [node(5, colorClass=7, isBackwardNode=True), node(6, colorClass=7)]
    data["edges"][1]["size"], data["edges"][2]["size"] = 4, 8
    graph, _ = dnn_partitioning.load(write(tmp_path, data))
    assert graph.extras[graph.index("5")]["backward_of"] == "2"
    assert graph.colocation[graph.index("5")] == -1


def test_ids_are_unique(tmp_path: Path) -> None:
    """Two nodes of one id are refused, named."""
    data = workload()
    data["nodes"].append(node(3))
    with pytest.raises(InvalidGraph, match="'3' appears more than once"):
        dnn_partitioning.load(write(tmp_path, data))


def test_malformed_files(tmp_path: Path) -> None:
    """A missing file, cut JSON, and JSON that is no object are refused; so is a workload without devices."""
    with pytest.raises(InvalidGraph, match="cannot read"):
        dnn_partitioning.load(tmp_path / "none.json")
    path = tmp_path / "cut.json"
    for text, message in (('{"nodes": [', "not valid JSON"), ("[]", "must be object"), ("[" * 99999, "JSON")):
        path.write_text(text)
        with pytest.raises(InvalidGraph, match=message):
            dnn_partitioning.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidGraph):
        dnn_partitioning.load(path)
    with pytest.raises(InvalidHardware, match="no devices"):
        dnn_partitioning.load(write(tmp_path, workload() | {"maxFPGAs": 0, "maxCPUs": 0}))


def test_a_single_node(tmp_path: Path) -> None:
    """One node without edges is a workload, on CPUs alone too."""
    data = workload() | {"nodes": [node(0)], "edges": [], "maxFPGAs": 0}
    graph, hardware = dnn_partitioning.load(write(tmp_path, data))
    assert (graph.num_ops, hardware.num_devices) == (1, 1)


SHAPES = {
    "layer-bert24_inference": (32, 55),
    "layer-gnmt_inference": (96, 122),
    "layer-inceptionv3_inference": (326, 363),
    "layer-resnet50_inference": (177, 193),
    "op-bert_l-3_inference": (235, 250),
    "op-bert_l-6_inference": (418, 448),
}


@pytest.mark.parametrize("name", SHAPES)
def test_published_workloads(name: str) -> None:
    """The authors' files are read whole: shape, total times, exact costs, real bytes."""
    root = instances_root()
    if root is None:
        pytest.skip("the published instances are absent: set RLINIT_INSTANCES to their folder")
    path = root / "dnn-partitioning" / "throughput" / f"{name}.json"
    graph, hardware = dnn_partitioning.load(path)
    data = json.loads(path.read_text())
    assert (graph.num_ops, graph.num_edges) == SHAPES[name]
    assert hardware.num_devices == data["maxFPGAs"] + data["maxCPUs"]
    assert graph.times["accelerator", 1].sum() == pytest.approx(sum(n["fpgaLatency"] for n in data["nodes"]) / 1000)
    bandwidth = hardware.devices[0].io_bandwidth
    assert bandwidth == 2**31 * (1 if name.startswith("op") else 1000)
    for edge in data["edges"]:
        moved = graph.out_bytes[graph.index(str(edge["sourceId"]))]
        assert moved == edge["size"]
        assert moved / bandwidth == edge["cost"] / 1000
