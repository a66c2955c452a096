"""What a person watches while an agent trains: TensorBoard's curves, a line a validation, the report at the end."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.train.core.run_state import Progress

Measures = Mapping[str, Mapping[str, float]]

_COLUMNS = (
    ("below_reference", "gain", "{:+.2%}"),
    ("gap_to_optimum", "gap to optimum", "{:.2%}"),
    ("at_optimum", "at optimum", "{:.0%}"),
    ("gap_to_bound", "gap to bound", "{:.2%}"),
    ("ms", "ms", "{:.2f}"),
)

_PLAYS = (("greedy", ""), ("sampled", "sampled_"))
"""Schedules that are measured, and what their measures begin with."""


class Watcher:
    """Writes TensorBoard's files into a run's folder, and says how training goes.

    Parameters
    ----------
    folder
        The run's.
    step
        Where training starts. Curves of a run that was killed and resumed continue where it was saved.
    selection
        Validation sets whose measures are said.
    """

    def __init__(self, folder: Path, step: int, selection: tuple[str, ...]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.selection = selection
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
        self.pending: dict[str, list[float]] = defaultdict(list)

    def close(self) -> None:
        """Write what is not written yet."""
        self.writer.close()

    def add(self, scalars: Mapping[str, float]) -> None:
        """Take in a step's numbers; `flush` plots their means."""
        for name, value in scalars.items():
            self.pending[name].append(value)

    def flush(self, step: int, more: Mapping[str, float]) -> None:
        """Plot what was added since, averaged, and `more` (rates) as it is.

        Parameters
        ----------
        step
            Step of the training.
        more
            Rates by name, which are plotted as they are.
        """
        means = {name: float(np.mean(values)) for name, values in self.pending.items()}
        self.pending.clear()
        for name, value in {**means, **more}.items():
            self.writer.add_scalar(name, value, step)

    def validation(self, step: int, measures: Measures, seconds: float) -> None:
        """Plot the measures of every validation set, and say the selection's.

        Parameters
        ----------
        step
            Step of the training.
        measures
            Figures by validation set and name.
        seconds
            Since the training began.
        """
        for name, found in measures.items():
            for measure, value in found.items():
                self.writer.add_scalar(f"validation_{measure}/{name}", value, step)
        self.writer.flush()
        gains = "; ".join(f"{name} {measures[name]['below_reference']:+.2%}" for name in self.selection)
        self.say(f"step {step:6}  {seconds:7.1f} s  below reference: {gains}")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr)


def report(card: Mapping[str, Any], progress: Progress) -> str:
    """Return the report at a run's end, in Markdown: what was trained, how, and how much better it got.

    For each validation set it has rows of the first and, if another, the best step.

    Parameters
    ----------
    card
        What the checkpoint's card says of its training.
    progress
        How far it came, with every validation.
    """
    first = progress.history[0]
    best = next(entry for entry in progress.history if entry["step"] == progress.best_step)
    known = [column for column in _COLUMNS if any(column[0] in found for found in best["measures"].values())]
    header = ["set", "step", "played", *(title for _, title, _ in known)]
    rows = [header, ["---"] * len(header)]
    for name in best["measures"]:
        for entry in [first] if first["step"] == best["step"] else [first, best]:
            found = entry["measures"][name]
            for play, prefix in _PLAYS:
                cells = [form.format(found[prefix + key]) if prefix + key in found else "" for key, _, form in known]
                if any(cells):
                    rows.append([name, str(entry["step"]), play, *cells])
    rate = progress.graphs / max(progress.seconds, 1e-9)
    lines = [
        f"# {card['config']['task']}: {card['config']['network']} agent",
        "",
        f"- command: `{card['command']}`",
        f"- {progress.step:,} steps, {progress.graphs:,} graphs, {progress.seconds:,.0f} s ({rate:,.0f} graphs/s)",
        f"- best checkpoint: step {progress.best_step}, by validation on problems that training does not see",
        f"- machine: {card['machine']['cpu']}, {card['machine']['cores']} cores",
        "",
        "`gain`: how much smaller than the heuristic's value.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]
    return "\n".join(lines)
