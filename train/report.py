"""The report at a run's end: what was trained, how, and how much better it got, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinit.files import write_atomically, write_json
from rlinit.train.core.machine_info import machine
from rlinit.train.core.run_state import Progress

_COLUMNS = (
    ("below_reference", "gain", "{:+.2%}"),
    ("gap_to_rival", "gap to rival", "{:+.2%}"),
    ("gap_to_optimum", "gap to optimum", "{:.2%}"),
    ("at_optimum", "at optimum", "{:.0%}"),
    ("gap_to_bound", "gap to bound", "{:.2%}"),
    ("ms", "ms", "{:.2f}"),
)

_PLAYS = (("greedy", ""), ("sampled", "sampled_"))
"""Schedules that are measured, and what their measures begin with."""


def training_card(config: Mapping[str, Any], command: str, progress: Progress) -> dict[str, Any]:
    """Return what a checkpoint's card says of its training.

    Parameters
    ----------
    config
        The run's configuration as plain data.
    command
        The command line that began it.
    progress
        How far it came.
    """
    return {
        "command": command,
        "config": dict(config),
        "seed": config["seed"],
        "steps": progress.step,
        "graphs": progress.graphs,
        "seconds": round(progress.seconds, 1),
        "machine": machine(),
    }


def write_report(folder: Path, config: Mapping[str, Any], command: str, progress: Progress) -> None:
    """Write ``report.json`` and ``report.md`` into the run's folder.

    Parameters
    ----------
    folder
        Of the run.
    config
        The run's configuration as plain data.
    command
        The command line that began it.
    progress
        How far it came, with every validation.
    """
    header, *rows = report_rows(progress)
    card = training_card(config, command, progress)
    rate = progress.graphs / max(progress.seconds, 1e-9)
    data = {
        "training": card,
        "graphs_per_s": round(rate, 1),
        "best_step": progress.best_step,
        "history": progress.history,
    }
    write_json(folder / "report.json", data)
    lines = [
        f"# {config['task']}: {config['network']} agent by {config['algorithm']}",
        "",
        f"- command: `{command}`",
        f"- {progress.step:,} steps, {progress.graphs:,} graphs, {progress.seconds:,.0f} s ({rate:,.0f} graphs/s)",
        f"- best checkpoint: step {progress.best_step}, by validation on problems that training does not see",
        f"- machine: {card['machine']['cpu']}, {card['machine']['cores']} cores",
        "",
        "`gain`: how much smaller than the heuristic's value; "
        "`gap to rival`: above (+) or below (-) what the search written by hand reaches in the same processor time.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)),
        "",
    ]
    write_atomically(folder / "report.md", "\n".join(lines))


def report_rows(progress: Progress) -> list[list[str]]:
    """Return the header, and for each validation set rows of the first and, if another, the best step."""
    first = progress.history[0]
    best = next(entry for entry in progress.history if entry["step"] == progress.best_step)
    known = [column for column in _COLUMNS if any(column[0] in found for found in best["measures"].values())]
    rows = [["set", "step", "played", *(title for _, title, _ in known)]]
    for name in best["measures"]:
        for entry in [first] if first["step"] == best["step"] else [first, best]:
            found = entry["measures"][name]
            for play, prefix in _PLAYS:
                cells = [form.format(found[prefix + key]) if prefix + key in found else "" for key, _, form in known]
                if any(cells):
                    rows.append([name, str(entry["step"]), play, *cells])
    return rows
