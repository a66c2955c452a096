"""The reader of optimal task graph schedules: a small file in full, malformed ones, and optima of published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlinit
from rlinit.datasets.published import gxl
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph


def _weight(value: int) -> str:
    return f'<attr name="Weight"><int>{value}</int></attr>'


SMALL = (
    '<?xml version="1.0" encoding="UTF-8"?><gxl><graph id="small">'
    '<attr name="Number of processors"><int>2</int></attr><attr name="Total schedule length"><int>8</int></attr>'
    f'<node id="1">{_weight(2)}</node><node id="2">{_weight(5)}</node><node id="3">{_weight(4)}</node>'
    f'<edge from="1" to="2">{_weight(7)}</edge><edge from="1" to="3">{_weight(2)}</edge></graph></gxl>'
)


def test_a_small_file_in_full(tmp_path: Path) -> None:
    """Tasks, times, delays of edges and the schedule's length; another number of processors where asked for."""
    path = tmp_path / "small.gxl"
    path.write_text(SMALL)
    graph, hardware = gxl.load(path)
    assert graph.names == ("1", "2", "3")
    assert graph.edge_bytes.tolist() == [7.0, 2.0]
    assert hardware.num_devices == 2
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2)
    assert plan.value == pytest.approx(gxl.best_known(path))
    assert rlinit.schedule(*gxl.load(path, 1), objective="latency", time_limit_s=2).value == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no XML"),
        ("<gxl/>", "no <graph>"),
        (SMALL.replace("<gxl>", '<!DOCTYPE gxl [<!ENTITY a "a">]><gxl>'), "entities"),
        (SMALL.replace("Number of", "Sum of"), "gives no 'Number of processors'"),
        (SMALL.replace("<int>7</int>", "<int>x</int>"), r"edge \('1', '2'\): 'Weight' is 'x'"),
        (SMALL.replace('to="3"', 'to="9"'), "unknown op '9'"),
        (SMALL.replace('<node id="2">', "<node>"), "a node has no 'id'"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong, and where."""
    path = tmp_path / "wrong.gxl"
    path.write_text(text)
    with pytest.raises(InvalidGraph, match=message):
        gxl.load(path)


@pytest.mark.parametrize(
    "name",
    [
        "16p_Fork_Join_Nodes_10_CCR_1.84_WeightType_Random",
        "16p_Fork_Nodes_10_CCR_10.00_WeightType_Random",
        "16p_OutTree-Balanced-MaxBf-3_Nodes_10_CCR_0.10_WeightType_Random",
        "2p_Fork_Nodes_10_CCR_0.99_WeightType_Random",
        "2p_InTree-Balanced-MaxBf-3_Nodes_10_CCR_1.04_WeightType_Random",
        "2p_Random_Nodes_10_Density_4.50_CCR_10.00_WeightType_Random",
        "2p_Stencil_Nodes_10_CCR_1.97_WeightType_Random",
        "4p_Pipeline_Nodes_21_CCR_1.00_WeightType_Random",
        "4p_Random_Nodes_10_Density_1.50_CCR_10.00_WeightType_Random",
        "8p_Random_Nodes_10_Density_0.60_CCR_1.02_WeightType_Random",
        "8p_SeriesParallel-MaxBf-3_Nodes_10_CCR_1.98_WeightType_Random",
        "8p_Stencil_Nodes_21_CCR_0.10_WeightType_Random",
    ],
)
def test_published_optima(name: str) -> None:
    """The value is the published optimum and the bound no more; CP-SAT, where it is there, proves it."""
    root = instances_root()
    if root is None or not (path := root / "task-graphs" / "communication" / f"{name}.gxl").is_file():
        pytest.skip("the published instances are absent (set RLINIT_INSTANCES)")
    plan = rlinit.schedule(*gxl.load(path), objective="latency", time_limit_s=5)
    optimum = gxl.best_known(path)
    assert plan.bound <= optimum * (1 + 1e-9)
    assert plan.value == pytest.approx(optimum)
