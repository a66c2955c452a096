"""The reader of assembly lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinit.datasets.published import assembly_line
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph

TEXT = """<number of tasks>
3

<cycle time>
1000

<task times>
1 5
2 7.5
3 1

<precedence relations>
1,3
2,3

<end>
"""


def write(folder: Path, text: str) -> Path:
    """Write an instance and return its path."""
    path = folder / "line.alb"
    path.write_text(text)
    return path


def test_a_small_instance_in_full(tmp_path: Path) -> None:
    """Times, precedence and names; nothing has bytes."""
    graph = assembly_line.load(write(tmp_path, TEXT))
    assert graph.name == "line"
    assert graph.names == ("1", "2", "3")
    assert graph.times["*", 1].tolist() == [5, 7.5, 1]
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    assert graph.out_bytes.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<task times>", "<times>", "expected a section <task times>"),
        ("\n3\n", "\n4\n", "each task from 1 to 4"),
        ("\n3\n", "\n3\n3\n", "one number under"),
        ("2 7.5", "2 x", "line 9"),
        ("2 7.5", "2.5 7.5", "line 9"),
        ("2 7.5", "2 -1", "negative"),
        ("1,3", "1,3,2", "line 13"),
        ("1,3", "1;3", "line 13"),
        ("1,3", "1,4", "unknown op '4'"),
        ("1,3", "3,1\n1,3", "cycle"),
    ],
)
def test_malformed_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    """What is malformed is refused with its line, a malformed graph with its op."""
    assert old in TEXT
    with pytest.raises(InvalidGraph, match=message):
        assembly_line.load(write(tmp_path, TEXT.replace(old, new, 1)))


def test_unreadable_file(tmp_path: Path) -> None:
    """A missing file is refused."""
    with pytest.raises(InvalidGraph, match="cannot read"):
        assembly_line.load(tmp_path / "none.alb")


@pytest.mark.parametrize("tasks", [100, 1000])
def test_published_instances(tasks: int) -> None:
    """The authors' files are read whole."""
    root = instances_root()
    if root is None:
        pytest.skip("the published instances are absent: set RLINIT_INSTANCES to their folder")
    files = sorted((root / "assembly-line" / f"otto-{tasks}").glob("*.alb"))
    assert files
    for path in files:
        graph = assembly_line.load(path)
        assert graph.num_ops == tasks
        assert 0 < graph.times["*", 1].min() <= graph.times["*", 1].max() <= 1000


def test_a_huge_number_of_tasks_is_refused_in_a_line(tmp_path: Path) -> None:
    """A damaged count is held against the lines there are, not counted up to."""
    path = tmp_path / "line.alb"
    path.write_text("<number of tasks>\n1e308\n<task times>\n1 5\n<precedence relations>\n<end>\n", encoding="utf-8")
    with pytest.raises(InvalidGraph, match="expected a time for each task from 1 to 1"):
        assembly_line.load(path)
