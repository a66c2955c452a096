"""What is printed where there is no terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from rlinit.cli import output
from rlinit.plan import HistoryEntry


def test_progress_is_printed_by_the_clock_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value at the start makes one line, however long nothing follows; what is compiled makes one note."""
    monkeypatch.setattr(output, "UNEXPLAINED_S", 0.01)
    console = Console(file=io.StringIO(), width=100)
    with output.live_line(console, "latency") as tell:
        for phase in ("compiling kernels", "compiling more"):
            tell(HistoryEntry(0.0, None, None, phase))
        tell(HistoryEntry(0.0, (2.0,), (1.0,), "sweep"))
        time.sleep(0.3)
    assert isinstance(console.file, io.StringIO)
    note, *lines = console.file.getvalue().splitlines()
    assert note.startswith("compiling kernels")
    assert [line.split("  ", 1)[1] for line in lines] == ["value 2 s  bound 1 s  gap 50.00%  [sweep]"]
