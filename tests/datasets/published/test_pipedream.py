"""The reader of PipeDream's profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinit.datasets.published import pipedream
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph


def line(name: str, forward: str, backward: str, activation: str, parameters: str) -> str:
    """Return the line of an op."""
    times = f"forward_compute_time={forward}, backward_compute_time={backward}"
    return f"{name} -- {times}, activation_size={activation}, parameter_size={parameters}"


CONV = "Conv2d(3, 8, kernel_size=(3, 3), bias=False)"
LINES = [
    line("node10 -- LSTM(8, 8)", "2.000", "3.000", "[6.0; 1.5; 0.5]", "64.000"),
    line(f"node2 -- {CONV}", "1.000", "0.500", "12.000", "216.000 -- stage_id=1"),
    "",
    line("node9 -- Input0", "0.000", "0.000", "0.0", "0.000"),
    "\tnode2 -- node9",
    "\tnode9 -- node10",
]
TEXT = "\n".join(LINES) + "\n"


def write(folder: Path, text: str) -> Path:
    """Write a profile and return its path."""
    path = folder / "profile.txt"
    path.write_text(text)
    return path


def test_a_small_profile_in_full(tmp_path: Path) -> None:
    """Every column, with several outputs summed, a stage ignored, and ops in the order of their numbers."""
    graph = pipedream.load(write(tmp_path, TEXT))
    assert graph.name == "profile"
    assert graph.names == ("node2", "node9", "node10")
    assert graph.kinds == ("Conv2d", "Input0", "LSTM")
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.times["*", 1].tolist() == [0.001, 0.0, 0.002]
    assert graph.out_bytes.tolist() == [12, 0, 8]
    assert graph.param_bytes.tolist() == [216, 0, 64]
    assert graph.extras[0] == {"label": CONV}
    both = pipedream.load(write(tmp_path, TEXT), passes="both")
    assert both.times["*", 1].tolist() == [0.0015, 0.0, 0.005]


def test_other_ids_keep_the_order_of_the_file(tmp_path: Path) -> None:
    """Ids that are not numbered nodes are left in place."""
    graph = pipedream.load(write(tmp_path, TEXT.replace("node10", "last")))
    assert graph.names == ("last", "node2", "node9")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("node2 -- Conv2d", "node2 Conv2d", "line 2: expected 'id -- description"),
        ("\tnode9 -- node10", "\tnode9 node10", "line 6: expected a tab"),
        ("\tnode9 -- node10", "node9 -- node10", "line 6"),
        ("\tnode9 -- node10", "\tnode9 -- node11", "unknown op 'node11'"),
        ("\tnode9 -- node10", "\tnode9 -- node2", "cycle"),
        ("=1.000,", "=fast,", "line 2: 'forward_compute_time' is 'fast'"),
        ("=1.000,", "=,", "line 2: 'forward_compute_time' is ''"),
        ("[6.0; 1.5; 0.5]", "[6.0; x]", "line 1: 'activation_size'"),
        ("[6.0; 1.5; 0.5]", "[6.0; 1.5", "line 1: 'activation_size'"),
        (", parameter_size=216.000", "", "line 2: op 'node2' gives no 'parameter_size'"),
        ("=2.000,", "=-2.000,", "'node10'.*negative"),
        ("=2.000,", "=inf,", "'node10'.*infinite"),
        ("=2.000,", "=nan,", "'node10'.*NaN"),
        (LINES[3], f"{LINES[3]}\n{LINES[3]}", "'node9'.*more than once"),
        (TEXT, "\n", "no ops"),
    ],
)
def test_malformed_lines(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A malformed line is refused with its number, a malformed graph with its op."""
    assert old in TEXT
    with pytest.raises(InvalidGraph, match=message):
        pipedream.load(write(tmp_path, TEXT.replace(old, new, 1)))


def test_unknown_passes(tmp_path: Path) -> None:
    """Times of other passes are refused, not guessed."""
    with pytest.raises(InvalidGraph, match="'backward'"):
        pipedream.load(write(tmp_path, TEXT), passes="backward")  # type: ignore[arg-type]


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file and one that is no text are refused."""
    with pytest.raises(InvalidGraph, match="cannot read"):
        pipedream.load(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidGraph, match="cannot read"):
        pipedream.load(tmp_path / "binary.txt")


@pytest.mark.parametrize(
    ("name", "ops", "edges"),
    [("densenet121", 429, 487), ("gnmt", 48, 58), ("inception_v3", 326, 362), ("nasnetamobile", 921, 1078)],
)
def test_published_profiles(name: str, ops: int, edges: int) -> None:
    """The authors' files are read whole, and their numbering is a topological order."""
    root = instances_root()
    if root is None:
        pytest.skip("the published instances are absent: set RLINIT_INSTANCES to their folder")
    graph = pipedream.load(root / "pipedream" / f"{name}.txt")
    assert (graph.num_ops, graph.num_edges) == (ops, edges)
    assert graph.order.tolist() == list(range(ops))
    assert graph.times["*", 1].sum() > 0.01
