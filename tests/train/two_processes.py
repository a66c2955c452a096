"""One of two processes that torchrun starts: trains, and writes its weights and the seeds of its batches."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from rlinit.train.loop import train
from rlinit.train.tasks.common import unwrap
from tests.train.runs import tiny_config
from tests.train.tiny_task import TinyBatch, TinyParams, TinyPlayed, TinyTask


class RecordingTask(TinyTask):
    """Keeps the network that is trained, and the seeds of batches."""

    def __init__(self, params: TinyParams) -> None:
        super().__init__(params)
        self.trained: Any = None
        self.seeds: list[int] = []

    def generate(self, seed: int, size: int, count: int) -> TinyBatch:
        self.seeds.append(seed)
        return super().generate(seed, size, count)

    def choices(self, network: Any, batch: TinyBatch, outputs: Any, played: TinyPlayed) -> Any:
        if torch.is_grad_enabled():
            self.trained = unwrap(network)
        return super().choices(network, batch, outputs, played)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    task = RecordingTask(TinyParams())
    train(tiny_config(folder), task)
    found = {"weights": task.trained.state_dict(), "seeds": task.seeds[-5:]}
    torch.save(found, folder / f"rank-{os.environ['RANK']}.pt")
