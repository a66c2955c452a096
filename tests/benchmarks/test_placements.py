"""Graphs by their descriptions: what the command refuses."""

from __future__ import annotations

import pytest

from benchmarks.families import placements


def test_a_text_that_fits_no_graph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line says so, nothing is solved, and the exit code is 2."""
    monkeypatch.setattr("sys.argv", ["placements", "unrelated", "--only", "no such graph"])
    with pytest.raises(SystemExit) as ended:
        placements.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "no graph of 'unrelated' taken by --every 1 has --only 'no such graph'\n"
