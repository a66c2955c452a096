"""The figures of the source tree count what they say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import networkx as nx
import pytest

from tools import house
from tools.walk import TARGETS

SOURCE = '''\
"""A module."""

import os  # a comment


def public(a, b):
    """Do it.

    Raises
    ------
    ValueError
        Always.
    """
    text = """two
    lines"""
    raise ValueError(text)


class Thing:
    """A thing."""

    def method(self, a):
        def inner(c, d):
            raise KeyError
        return inner

    def _hidden(self, *a, **b):
        raise TypeError
'''


@pytest.fixture
def module() -> house.Module:
    return house.Module("rlinit.x", Path("x.py"), SOURCE, ast.parse(SOURCE))


def test_functions_are_counted_with_their_class(module: house.Module) -> None:
    """Methods lose ``self``, nested functions are not public, docstrings are not counted as lines."""
    found = {function.name: function for function in house.functions(module)}
    assert {name: function.parameters for name, function in found.items()} == {
        "public": ["a", "b"],
        "Thing.method": ["a"],
        "Thing.method._local.inner": ["c", "d"],
        "Thing._hidden": ["a", "b"],
    }
    assert [name for name, function in found.items() if function.is_public] == ["public", "Thing.method"]
    assert found["public"].lines == 4


def test_code_lines_leave_out_comments_and_docstrings(module: house.Module) -> None:
    """Strings of code count line by line, documentation and empty lines do not."""
    assert house.code_lines(module) == 12


def test_sections_and_raises(module: house.Module) -> None:
    """A section needs its underline, and what a nested function raises is not raised by the outer one."""
    found = {function.name: function.node for function in house.functions(module)}
    assert house.has_section(found["public"], "Raises")
    assert not house.has_section(found["public"], "Parameters")
    assert house.raises(found["public"])
    assert not house.raises(found["Thing.method"])


def test_a_worse_figure_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A figure is worse when it moves away from its goal, in either direction of better."""
    table = [
        house.Figure("long", 3, "0"),
        house.Figure("short", 3, "0"),
        house.Figure("share", 40.0, "100", more_is_better=True),
        house.Figure("new", 1, "0"),
    ]
    worse = house.compare(table, {"long": 2, "short": 3, "share": 50.0})
    assert [figure.name for figure in worse] == ["long", "share"]
    assert capsys.readouterr().out.count("WORSE") == 2


def test_the_library_is_found() -> None:
    """Every linked folder is read once, under the name it is imported by."""
    known = house.library()
    assert {"rlinit.graph", "rlinit.exact.solvers.scip", "rlinit.datasets", "rlinit.train.loop"} <= set(known)
    assert len({module.path for module in known.values()}) == len(known)


def test_parameters_may_be_documented_elsewhere() -> None:
    """A docstring may send the reader to a function that lists them all; one that misses some does not count."""
    source = '''
def base(a, b):
    """Do it.

    Parameters
    ----------
    a, b
        Numbers; c is none of them.

    Returns
    -------
    c
        Their sum.
    """

def same(a, b):
    """Do it too; see `x.base`."""

def more(a, c):
    """Do it too; see `x.base`."""

def other(a, b):
    """Do it too; see `y.base`."""
'''
    module = house.Module("rlinit.x", Path("x.py"), source, ast.parse(source))
    found = {function.name: function for function in house.functions(module)}
    named = {name: [function] for name, function in found.items()}
    assert {name for name, function in found.items() if house.documents(function, named)} == {"base", "same"}


def test_the_way_to_an_equation_leads_there() -> None:
    """Each target is reached from `schedule` by real calls, and what is called is defined in the library."""
    ways, pairs = house.walked()
    known = house.library()
    for target in TARGETS:
        assert ways[target][0] == "rlinit.solving.api.schedule"
        assert ways[target][-1].endswith(f".{target}")
    assert all(house._module_of(name, known) in known for pair in pairs for name in pair)


def test_a_call_against_the_imports_is_a_climb() -> None:
    """A callback into a folder that the caller's does not import counts; a call down or within a folder does not."""
    known = {
        name: house.Module(name, Path(f"{name.replace('.', '/')}.py"), "", ast.parse(""))
        for name in ("rlinit.top.a", "rlinit.low.b", "rlinit.low.c")
    }
    folders: nx.DiGraph[str] = nx.DiGraph([("rlinit.top", "rlinit.low")])
    pairs = [
        ("rlinit.top.a.f", "rlinit.low.b.g"),
        ("rlinit.low.b.g", "rlinit.low.c.h"),
        ("rlinit.low.b.g", "rlinit.top.a.f"),
    ]
    assert house.climbs(pairs, known, folders) == ["rlinit.low.b.g -> rlinit.top.a.f"]


def test_what_got_worse_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--update`` takes what got better alone, within the room of a figure, too."""
    table = [house.Figure("a", 9, "0"), house.Figure("b", 11, "0", room=0.5), house.Figure("c", 1, "0")]
    monkeypatch.setattr(house, "figures", lambda: table)
    monkeypatch.setattr(house, "RECORD", tmp_path / "house.json")
    (tmp_path / "house.json").write_text('{"a": 10, "b": 10}')
    assert house.main(["--update"]) == 0
    assert json.loads((tmp_path / "house.json").read_text()) == {"a": 9, "b": 10, "c": 1}


def test_numbers_are_counted_by_name_and_want_a_reason() -> None:
    """A text below, or a comment before or beside, is one; text, tables, and places that count up are no numbers."""
    text = "\n".join(
        [
            "A, B = 1, -2.0",
            "C = 2**20",
            '"""Bytes."""',
            "D = float(3)  # metres",
            "# seconds",
            "E = 4",
            "F = 'f'",
            "G = {'g': 1}",
            "H, I = 0, 1",
            "J, K = range(2)",
            "L, M = 0, 2",
        ]
    )
    found = list(house.numbers(house.Module("m", Path("m.py"), text, ast.parse(text))))
    assert found == [("m:1", 2, False), ("m:2", 1, True), ("m:4", 1, True), ("m:6", 1, True), ("m:11", 2, False)]
