"""The reader of flexible job shops: a small file in full, malformed ones, and bounds of published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlinit
from rlinit.datasets.published import flexible_job_shop
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph

SMALL = "2 2 1.5\n2 2 1 5 2 3 1 1 4\n1 1 2 6\n"


def test_a_small_file_in_full(tmp_path: Path) -> None:
    """Two operations that two machines and one can run, and one that the other can."""
    (tmp_path / "small.txt").write_text(SMALL)
    graph, hardware = flexible_job_shop.load(tmp_path / "small.txt")
    assert graph.names == ("0.0", "0.1", "1.0")
    assert graph.edges.tolist() == [[0, 1]]
    assert [device.name for device in hardware.devices] == ["m1", "m2"]
    assert graph.forbidden["m1"].tolist() == [False, False, True]
    assert graph.forbidden["m2"].tolist() == [False, True, False]
    assert rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2).value == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line"),
        ("2\n", "first line"),
        ("3" + SMALL[1:], "there are 2 jobs"),
        (SMALL.replace("2 2 1 5", "2 3 1 5"), "line 2"),
        (SMALL.replace("1 1 2 6", "1 1 3 6"), "line 3.*from 1 to 2"),
        (SMALL.replace("1 1 2 6", "1 1 2 6 6"), "line 3.*after the last"),
        (SMALL.replace("1 1 2 6", "1 1 2 -6"), "line 3"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused with the place."""
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(InvalidGraph, match=message):
        flexible_job_shop.load(tmp_path / "bad.txt")
    with pytest.raises(InvalidGraph, match="absent"):
        flexible_job_shop.load(tmp_path / "absent.txt")


@pytest.mark.parametrize(("name", "optimum"), [("la01_edata", 609), ("la01_vdata", 570)])
def test_published_optima(name: str, optimum: float) -> None:
    """Bounds never exceed the published optimum, and schedules never beat it."""
    root = instances_root()
    if root is None or not (root / "flexible-job-shop" / f"{name}.txt").is_file():
        pytest.skip("the published instances are absent (set RLINIT_INSTANCES)")
    graph, hardware = flexible_job_shop.load(root / "flexible-job-shop" / f"{name}.txt")
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2)
    assert plan.bound <= optimum * (1 + 1e-9)
    assert plan.value >= optimum * (1 - 1e-9)
