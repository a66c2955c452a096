"""The reader of assembly lines with workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinit.datasets.published import alwabp
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph
from rlinit.stages.lowering import lower_stages

TEXT = "3\n5 Inf\n7 2\n1 1\n1 3\n2 3\n-1 -1\n"


def write(folder: Path, text: str) -> Path:
    """Write an instance and return its path."""
    path = folder / "4"
    path.write_text(text)
    return path


def test_a_small_instance_in_full(tmp_path: Path) -> None:
    """Each worker is a device of his own, and what he cannot do is forbidden there."""
    graph, hardware = alwabp.load(write(tmp_path, TEXT))
    assert graph.names == ("1", "2", "3")
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    assert [device.name for device in hardware.devices] == ["worker1", "worker2"]
    problem = lower_stages(graph, hardware, "pipeline").problem
    assert problem.work_s.tolist() == [[5, 7, 1], [float("inf"), 2, 1]]
    assert not problem.in_s.any()


def test_the_end_may_be_left_out(tmp_path: Path) -> None:
    """Precedence ends at ``-1 -1`` or with the file."""
    graph, _ = alwabp.load(write(tmp_path, TEXT.replace("-1 -1\n", "")))
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    graph, _ = alwabp.load(write(tmp_path, TEXT + "1 2\n"))
    assert graph.edges.tolist() == [[0, 2], [1, 2]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (TEXT, "\n", "number of tasks on the first line"),
        ("3\n5", "9\n5", "expected 9 rows"),
        ("5 Inf", "5 Inf 4", "line 3: expected 3 times"),
        ("5 Inf", "5 x", "line 2: expected 2 times"),
        ("7 2", "7 -2", "line 3: expected 2 times"),
        ("7 2", "7 nan", "line 3: expected 2 times"),
        ("1 3", "1", "line 5: expected two tasks"),
        ("1 3", "1 4", "line 5: expected a whole number from 1 to 3, got '4'"),
        ("2 3", "3 1", "cycle"),
    ],
)
def test_malformed_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    """What is malformed is refused with its line, a malformed graph with its op."""
    assert old in TEXT
    with pytest.raises(InvalidGraph, match=message):
        alwabp.load(write(tmp_path, TEXT.replace(old, new, 1)))


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file and a malformed table are refused."""
    with pytest.raises(InvalidGraph, match="cannot read"):
        alwabp.load(tmp_path / "none")
    (tmp_path / "best-known.csv").write_text("family,lower\na,1\n")
    with pytest.raises(InvalidGraph, match="best-known"):
        alwabp.best_known(tmp_path)


def test_published_instances() -> None:
    """The files have the tasks and workers that the table of best values says."""
    root = instances_root()
    if root is None:
        pytest.skip("the published instances are absent: set RLINIT_INSTANCES to their folder")
    folder = root / "assembly-line" / "alwabp"
    best = alwabp.best_known(folder)
    assert len(best) == 40
    for family, number in best:
        graph, hardware = alwabp.load(folder / family / number)
        assert graph.num_ops == {"heskia": 28, "roszieg": 25, "wee-mag": 75, "tonge": 70}[family]
        assert (
            hardware.num_devices
            == {28: (4, 7), 25: (4, 6), 75: (11, 19), 70: (10, 17)}[graph.num_ops][int(number) >= 44]
        )
