"""What a person watches while an agent trains: TensorBoard, pictures of the same few schedules, a line of progress."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from rlinit.arrays import FloatArray
from rlinit.reports.figures import draw
from rlinit.train.core.learner import Learner
from rlinit.train.tasks.protocol import AnyTask, Batch

_MOST_POINTS = 5000
"""Nodes shown in the embedding projector."""

Measures = Mapping[str, Mapping[str, float]]


class Watcher:
    """Writes TensorBoard's files and pictures into a run's folder, and shows progress.

    Parameters
    ----------
    folder
        The run's.
    step, steps
        Where training starts, and ends. Curves of a run that was killed and resumed continue where it was saved.
    selection
        Validation sets whose measures the progress line shows.
    """

    def __init__(self, folder: Path, step: int, steps: int, selection: tuple[str, ...]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.selection = selection
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
        self.console = Console(stderr=True)
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        self.line = Progress(*columns, console=self.console, disable=not sys.stderr.isatty())
        self.bar = self.line.add_task("", total=steps, completed=step, said="")
        self.pending: dict[str, list[float]] = defaultdict(list)
        self.said = {"train": "", "validation": ""}

    def __enter__(self) -> Self:
        self.line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.stop()
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
        means = {name: float(np.mean(values)) for name, values in self.pending.items()} | dict(more)
        self.pending.clear()
        for name, value in means.items():
            self.writer.add_scalar(name, value, step)
        shown = (
            ("reward/mean", "reward {:+.4f}"),
            ("train/loss", "loss {:.4f}"),
            ("speed/graphs_per_s", "{:,.0f} graphs/s"),
        )
        self.said["train"] = "  ".join(form.format(means[name]) for name, form in shown if name in means)
        self._show(step)

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
        parts = []
        for name in self.selection:
            found = measures[name]
            gap = f", {found['gap_to_optimum']:.2%} above optimum" if "gap_to_optimum" in found else ""
            parts.append(f"{name} {found['below_reference']:+.2%}{gap}")
        self.said["validation"] = "; ".join(parts)
        self._show(step)
        if not sys.stderr.isatty():
            self.say(
                f"step {step:6}  {seconds:7.1f} s  below reference: {self.said['validation']}  {self.said['train']}"
            )
        self.writer.flush()

    def say(self, text: str) -> None:
        """Print a line beside the progress line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print a table, its header first."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
        for title, *cells in zip(*rows, strict=True):
            words = title.split() + cells
            table.add_column(title, width=max(map(len, words)))
        for row in rows[1:]:
            table.add_row(*row)
        self.console.print(table)

    def _show(self, step: int) -> None:
        self.line.update(self.bar, completed=step, said="  |  ".join(filter(None, self.said.values())))

    def pictures(self, step: int, task: AnyTask, learner: Learner, batch: Batch, count: int) -> None:
        """Draw the greedy schedules of a batch's first problems, as files and in TensorBoard.

        Parameters
        ----------
        step
            Step of the training.
        task, learner
            Who plays.
        batch
            Problems, of which the first are drawn.
        count
            How many; 0: none.
        """
        from matplotlib.image import imread

        if count == 0:
            return
        folder = self.folder / "pictures"
        folder.mkdir(exist_ok=True)
        with torch.no_grad(), learner.autocast():
            outputs = task.forward(learner.evaluated, batch, learner.group.device)
            played = task.rollout(learner.evaluated, batch, outputs, samples=1, seed=0, greedy=True)
        for problem in range(min(count, len(batch))):
            path = folder / f"problem-{problem}-step-{step:07d}.png"
            draw(task.plan(batch, played, problem, 0), path)
            self.writer.add_image(f"schedule/problem-{problem}", imread(path), step, dataformats="HWC")

    def embeddings(self, step: int, task: AnyTask, learner: Learner, batch: Batch) -> None:
        """Write the embeddings of a batch's nodes for TensorBoard's projector, if the network has any.

        Parameters
        ----------
        step
            Step of the training.
        task, learner
            Whose embeddings.
        batch
            Problems; the first nodes are shown.
        """
        with torch.no_grad(), learner.autocast():
            outputs = task.forward(learner.evaluated, batch, learner.group.device)
            found: tuple[FloatArray, list[str]] | None = task.embeddings(batch, outputs)
        if found is not None:
            points, labels = found
            self.writer.add_embedding(
                np.asarray(points[:_MOST_POINTS], np.float32), labels[:_MOST_POINTS], global_step=step, tag="nodes"
            )

    def hyperparameters(self, config: Mapping[str, Any], outcome: Mapping[str, float]) -> None:
        """Write the configuration beside what it led to, for TensorBoard's table of runs.

        Parameters
        ----------
        config
            Nested settings of the run.
        outcome
            Its best scores by name.
        """
        self.writer.add_hparams(dict(_flat(config)), dict(outcome), run_name=".")


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested entries as (dotted name, number or text)."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value if isinstance(value, (int, float, str, bool)) else str(value)))
    return found
