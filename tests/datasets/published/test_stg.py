"""The reader of the Standard Task Graph set: a small file in full, malformed ones, and optima of published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlinit
from rlinit.datasets.published import stg
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph

SMALL = "  2\n 0 0 0\n 1 5 1 0\n 2 3 1 0\n 3 0 2 1 2\n# Parallelism : 1.6\n"


def test_a_small_file_in_full(tmp_path: Path) -> None:
    """Tasks, times and precedence; two tasks on one processor or on two."""
    (tmp_path / "small.stg").write_text(SMALL)
    graph, hardware = stg.load(tmp_path / "small.stg", 2)
    assert graph.names == ("0", "1", "2", "3")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert hardware.num_devices == 2
    assert rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2).value == pytest.approx(5.0)
    alone = stg.load(tmp_path / "small.stg", 1)
    assert rlinit.schedule(*alone, objective="latency", time_limit_s=2).value == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "number of tasks"),
        (SMALL.replace("1 5 1 0", "1 x 1 0"), "line 3"),
        (SMALL.replace("1 5 1 0", "1 5 2 0"), "line 3"),
        (SMALL.replace("1 5 1 0", "1 5 1 9"), "9"),
        (SMALL.replace("  2\n", "  7\n"), "expected 7"),
        (SMALL.replace("1 5 1 0", "1 " + "9" * 400 + " 1 0"), "line 3"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused with the place."""
    (tmp_path / "bad.stg").write_text(text)
    with pytest.raises(InvalidGraph, match=message):
        stg.load(tmp_path / "bad.stg", 2)
    with pytest.raises(InvalidGraph, match="processors"):
        stg.load(tmp_path / "bad.stg", 0)
    with pytest.raises(InvalidGraph, match="absent"):
        stg.load(tmp_path / "absent.stg", 2)


def test_a_published_optimum() -> None:
    """Bounds never exceed the published optimum, and schedules never beat it."""
    root = instances_root()
    if root is None or not (root / "task-graphs" / "stg" / "50" / "rand0000.stg").is_file():
        pytest.skip("the published instances are absent (set RLINIT_INSTANCES)")
    graph, hardware = stg.load(root / "task-graphs" / "stg" / "50" / "rand0000.stg", 2)
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=2)
    assert plan.bound <= 131 * (1 + 1e-9)
    assert plan.value >= 131 * (1 - 1e-9)
