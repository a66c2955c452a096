"""`sweep`: one model on many kinds of hardware, on joblib, resumed from what a killed sweep left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rlinit.errors import InvalidGraph, InvalidHardware, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Objective, Plan
from rlinit.solving.api import schedule
from rlinit.solving.common.options import SolveOptions
from rlinit.sweeping.rows import SweepRow, append_row, key_of, read_rows, row_of


def sweep(
    graph: Graph | Sequence[Graph],
    hardware: Sequence[Hardware],
    *,
    objective: Objective = "pipeline",
    inputs: int | None = None,
    method: str = "auto",
    time_limit_s: float | None = None,
    seed: int = 0,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[SweepRow], None] | None = None,
) -> list[SweepRow]:
    """Schedule models on each of several kinds of hardware and return a row for each, in their order.

    Parameters
    ----------
    graph
        The model, or several, each of which goes on all the hardware.
    hardware
        The kinds of hardware; of equal ones, the first is solved and stands for all.
    objective, inputs, method, time_limit_s, seed
        As for `rlinit.schedule`.
    workers
        Schedules side by side, as joblib's ``n_jobs``. None: what ``joblib.parallel_config`` says, one by default, so
        that its backends (``"dask"``, Ray's) carry the sweep over a cluster.
    out
        Write rows here, a line of JSON each, as they come, and do not solve again what it already has.
    progress
        Called with every row that was solved.

    Returns
    -------
    list[SweepRow]
        For each model in turn its rows; of a pair that does not go together, one that is ``refused`` and says why.

    Raises
    ------
    RlinitError
        No model, no hardware, an argument out of range, or an `out` that is not of a sweep.
    KeyboardInterrupt
        Ctrl-C; the rows so far are in `out`.
    """
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not hardware or not graphs:
        raise RlinitError(f"sweep needs at least one {'kind of hardware' if graphs else 'model'}")
    options = SolveOptions(objective=objective, inputs=inputs, method=method, time_limit_s=time_limit_s, seed=seed)
    path = None if out is None else Path(out)
    rows = {} if path is None else read_rows(path)
    pairs = [(key_of(net, one, options), net, one) for net in graphs for one in hardware]
    tasks: dict[str, tuple[Graph, Hardware]] = {}
    for key, net, one in pairs:
        if key not in rows:
            tasks.setdefault(key, (net, one))
    for row in _solved(tasks, options, workers):
        if path is not None:
            append_row(path, row)
        rows[row.key] = row
        if progress is not None:
            progress(row)
    return [rows[key] for key, _, _ in pairs]


def _solved(
    tasks: Mapping[str, tuple[Graph, Hardware]], options: SolveOptions, workers: int | None
) -> Iterator[SweepRow]:
    """Return the rows of what is left to solve, as they come."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered")
    return pool(delayed(_solve)(*task, key, options) for key, task in tasks.items())  # type: ignore[no-any-return]


def _solve(graph: Graph, hardware: Hardware, key: str, options: SolveOptions) -> SweepRow:
    try:
        settings = {one.name: getattr(options, one.name) for one in fields(options)}
        plan: Plan = schedule(graph, hardware, **settings)
    except (InvalidGraph, InvalidHardware) as problem:  # of this pair; the others go on
        return row_of(key, graph, hardware, options.objective, None, str(problem))
    if plan.provenance["interrupted"]:
        raise KeyboardInterrupt
    return row_of(key, graph, hardware, options.objective, plan)
