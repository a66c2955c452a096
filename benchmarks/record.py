"""What every benchmark shares: timing, and writing data with their provenance, and pictures."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from benchmarks.provenance import provenance
from rlinit.files import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "RESULTS",
    "count_processor_time",
    "geometric_mean",
    "measure_part",
    "median_seconds",
    "print_table",
    "save",
    "save_figure",
    "take_no_options",
    "timed",
]

RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")
P = ParamSpec("P")


def timed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """Return a call's result and its wall-clock seconds."""
    started = time.perf_counter()
    result = call(*args, **kwargs)
    return result, time.perf_counter() - started


def count_processor_time() -> None:
    """Let limits and timings of this process count its processor time, which other work does not lengthen.

    Programs of other packages (SCIP, HiGHS, CP-SAT) still look at the wall clock.
    """
    time.monotonic = time.perf_counter = time.process_time


def median_seconds(call: Callable[[], object], runs: int = 5) -> float:
    """Return the median seconds of several runs after one that is not counted."""
    call()
    return statistics.median(timed(call)[1] for _ in range(runs))


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs))


def save(name: str, rows: object, *, seeds: tuple[int, ...] = (0,), **settings: object) -> None:
    """Write a benchmark's data to ``results/NAME.json`` with what they were made with, its seeds and its settings.

    Seed 0 is the one that `rlinit.schedule` takes where nothing is said.
    """
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", {**provenance(seeds), "settings": settings, "rows": rows})


def take_no_options(description: str | None) -> None:
    """Answer ``--help`` with a benchmark's description, and refuse anything else on its command line."""
    argparse.ArgumentParser(description=description).parse_args()


def measure_part(
    name: str, parts: Mapping[str, tuple[str, Callable[[], list[dict[str, Any]]]]], **settings: object
) -> tuple[str, list[dict[str, Any]]]:
    """Measure the part that the command line names, of (title, what gives the rows); print, write and return its rows.

    Raises
    ------
    SystemExit
        The command line names none.
    """
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    if part not in parts:
        raise SystemExit(f"usage: {Path(sys.argv[0]).stem} {'|'.join(parts)}")
    title, measure = parts[part]
    rows = measure()
    print_table(title, list(rows[0]), (row.values() for row in rows))
    save(f"{name}_{part}", rows, seeds=(0,), **settings)
    return part, rows


def save_figure(name: str, figure: Figure) -> None:
    """Write a benchmark's picture to ``results/NAME.png``."""
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def print_table(title: str, header: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table; floats with four significant digits."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=150).print(table)
