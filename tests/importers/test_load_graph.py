"""`rlinit.load_graph`: dispatch on the suffix, compressed graphs, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import rlinit
from rlinit import Graph, importers, load_graph
from rlinit.errors import InvalidGraph


def diamond() -> Graph:
    """Return four ops with costs of several magnitudes."""
    sizes = {"a": 1e-9, "b": 0.0, "c": 1e12, "d": 3.5}
    ops = [(name, {"op": "x", "time_s": size, "out_bytes": size}) for name, size in sizes.items()]
    return Graph.build(ops, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], name="diamond")


def compress(path: Path, text: str) -> Path:
    """Write text as a gzip file and return its path."""
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_public_name() -> None:
    """`rlinit.load_graph` is the function of the importers."""
    assert rlinit.load_graph is importers.load_graph


def test_json_and_its_compressed_form_give_the_saved_graph(tmp_path: Path) -> None:
    """Saving, compressing or not, and loading change nothing."""
    graph = diamond()
    graph.save(tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json") == graph
    packed = compress(tmp_path / "G.JSON.GZ", (tmp_path / "g.json").read_text())
    assert load_graph(str(packed)) == graph


@pytest.mark.parametrize("name", ["model.pb", "model", "model.gz", "json"])
def test_unknown_suffix_lists_what_is_readable(name: str) -> None:
    """Another suffix is refused with the readable ones, before the file is looked at."""
    with pytest.raises(InvalidGraph, match=r"\.json, \.json\.gz, \.csv, \.onnx, \.pt2, \.tflite and \.keras"):
        load_graph(name)


@pytest.mark.parametrize("name", ["g.json", "g.json.gz", "g.keras"])
def test_a_batch_for_a_graph_without_dimensions(name: str) -> None:
    """Graphs whose tensors have fixed sizes take neither a batch size nor dimensions nor another sharing."""
    for choice in ({"batch": 2}, {"dims": {"n": 3}}, {"sharing": "copy"}):
        with pytest.raises(InvalidGraph, match="no dynamic dimensions"):
            load_graph(name, **choice)


@pytest.mark.parametrize("name", ["none.json", "none.json.gz", "none.keras", "none.onnx", "none.pt2", "none.tflite"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    """A missing file is an InvalidGraph that names it, whatever its suffix."""
    with pytest.raises(InvalidGraph, match=name):
        load_graph(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ('{"format": "rlinit-graph"', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "object"),
        ('{"format": "other", "version": 1, "name": "g", "ops": [], "edges": []}', "format"),
        ('{"format": "rlinit-graph", "version": 1, "name": "g", "ops": [{"name": 3}], "edges": []}', r"ops\[0\]"),
        ('{"format": "rlinit-graph", "version": 1, "name": "g", "ops": [], "edges": []}', "no ops"),
        ('{"format": "rlinit-graph", "version": 1, "name": "g", "ops": [{"name": "a", "flops": NaN}]}', "NaN"),
    ],
)
def test_malformed_content_of_a_compressed_file(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong inside a compressed file is told as it is for a plain one."""
    with pytest.raises(InvalidGraph, match=message):
        load_graph(compress(tmp_path / "g.json.gz", text))


def test_not_compressed_or_cut_short(tmp_path: Path) -> None:
    """A file that is not gzip, or whose end is missing, or whose middle is damaged, is refused by name."""
    path = tmp_path / "g.json.gz"
    whole = gzip.compress(json.dumps(diamond().to_dict()).encode())
    damaged = bytearray(whole)
    damaged[20:40] = bytes(20)
    for content in (b"{}", whole[:-12], bytes(damaged), b""):
        path.write_bytes(content)
        with pytest.raises(InvalidGraph, match=r"g\.json\.gz"):
            load_graph(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file beyond the limit is refused; at the limit it is read."""
    text = json.dumps(diamond().to_dict())
    path = compress(tmp_path / "g.json.gz", text)
    monkeypatch.setattr(importers, "MAX_BYTES", len(text))
    assert load_graph(path) == diamond()
    monkeypatch.setattr(importers, "MAX_BYTES", len(text) - 1)
    with pytest.raises(InvalidGraph, match="more than"):
        load_graph(path)
