"""What the commands print: phases as a table, and a progress line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlinit.budget import repeated
from rlinit.plan import HistoryEntry
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from rlinit.solving.phases import PlannedPhase


def escape_markup(text: str) -> str:
    """Return text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)


def show_value(value: float, objective: str) -> str:
    """Return a value of an objective with its unit.

    Parameters
    ----------
    value
        Seconds, or bytes for `memory`.
    objective
        Which of the objectives.
    """
    return format_bytes(value) if objective == "memory" else format_seconds(value)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, caption: str | None = None
) -> None:
    """Print a table of text.

    Parameters
    ----------
    header
        Names of the columns; none: a table without a head.
    rows
        Cells as text.
    title, caption
        What stands above and below.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, caption=caption, show_header=bool(header))
    for row in rows:
        table.add_row(*map(escape_markup, row))
    Console().print(table)


def print_phases(rows: Sequence[PlannedPhase], title: str) -> None:
    """Print the phases of a strategy: those that run with their reasons, then those passed over with what they need.

    Parameters
    ----------
    rows
        What each phase would do.
    title
        For what problem.
    """
    from rich.console import Console
    from rich.table import Table

    runs = Table(
        "phase", "share", title=title, title_justify="left", show_lines=True, caption="share: of the time left"
    )
    runs.add_column("why", overflow="fold")
    passed_over = Table("passed over here", "it needs", show_edge=False, style="dim")
    for row in rows:
        if row.runs:
            where = ", ".join(text for text, _ in row.conditions)
            runs.add_row(row.name, f"{row.share:.0%}", row.because + (f"\n[dim]where {where}[/]" if where else ""))
        else:
            passed_over.add_row(row.name, "; ".join(text for text, held in row.conditions if not held), style="dim")
    console = Console()
    console.print(runs)
    if passed_over.row_count:
        console.print(passed_over)


class _LiveLine:
    """The progress line: value, bound, gap, what there is of them, and phase."""

    def __init__(self, objective: str) -> None:
        self.objective = objective
        self.text = ""
        self.lock = threading.Lock()

    def __call__(self, entry: HistoryEntry) -> None:
        from rlinit.plan import relative_gap

        told = [f"value {show_value(entry.values[0], self.objective)}"] if entry.values else []
        told += [f"bound {show_value(entry.bounds[0], self.objective)}"] if entry.bounds else []
        told += [f"gap {relative_gap(entry.values, entry.bounds):.2%}"] if entry.values else []
        with self.lock:
            self.text = "  ".join([*told, f"[{entry.phase}]"])


UNEXPLAINED_S = 1.0
"""Seconds that a person waits before asking what goes on, and from which on one would ask where they went."""

_NEXT_LINE_S = 5.0
"""From a line of progress to the next one at least, where there is no terminal."""


class _PlainLines:
    """Progress as lines, each time with what is new, and once why a first schedule of all takes longer than its limit.

    Values may stay as they are for long: lines come by the clock, not with the values.
    """

    def __init__(self, console: Console, line: _LiveLine) -> None:
        self._console, self._line = console, line
        self._began, self._next = time.monotonic(), 0.0
        self._said = self._noted = ""

    def __call__(self, entry: HistoryEntry) -> None:
        if not entry.phase.startswith("compiling"):
            self._line(entry)
        elif not self._noted:
            self._noted = f"{entry.phase}; this time is not counted (rlinit compile does it ahead)"
            self._console.print(self._noted, highlight=False)

    def tell(self) -> None:
        """Print the line, unless it is the last one or too early for another."""
        now = time.monotonic() - self._began
        with self._line.lock:
            text = self._line.text
        if text and text != self._said and now >= self._next:
            self._said, self._next = text, now + _NEXT_LINE_S
            self._console.print(f"{now:.0f} s  {escape_markup(text)}", highlight=False)


@contextmanager
def live_line(console: Console, objective: str) -> Iterator[Callable[[HistoryEntry], None]]:
    """Show a live progress line while the body runs; where there is no terminal, a line every few seconds at most.

    Parameters
    ----------
    console
        Where to.
    objective
        What the values are of.
    """
    line = _LiveLine(objective)
    if not console.is_terminal:
        lines = _PlainLines(console, line)
        with repeated(lines.tell, UNEXPLAINED_S):
            yield lines
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.fields[text]}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("", text="")

        def refresh() -> None:
            with line.lock:
                bar.update(task, text=escape_markup(line.text))

        with repeated(refresh, 0.1):
            yield line
