"""Several processes that train one network: what torchrun starts, joined by DistributedDataParallel.

Without torchrun everything here is a process of its own, and nothing of torch.distributed is set up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rlinit.errors import TrainingFailure


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run and which one this is."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process validates, saves and reports."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """Return a network whose gradients are averaged over the processes; the leader's weights are every one's."""
        if self.size == 1:
            return network
        on = [self.device] if self.device.type == "cuda" else None
        wrapped: nn.Module = DistributedDataParallel(network, device_ids=on)
        return wrapped

    def from_leader(self, value: Any) -> Any:
        """Return the leader's value (anything small that pickles) in every process."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def total(self, value: float) -> float:
        """Return the sum of a number over the processes."""
        if self.size == 1:
            return value
        summed = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(summed)
        return float(summed)


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, if it did; NCCL for cuda, gloo for cpu.

    Raises
    ------
    TrainingFailure
        cuda is asked for and absent, or a machine has fewer GPUs than processes.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        if not torch.cuda.is_available():
            raise TrainingFailure(
                "device is cuda, but torch finds no usable GPU here; pass --device cpu, or install a torch built "
                f"for CUDA (this one is {torch.__version__})"
            )
        if local >= torch.cuda.device_count():
            raise TrainingFailure(
                f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs"
            )
        torch.cuda.set_device(local)
    where = torch.device(device, local) if device == "cuda" else torch.device("cpu")
    if size == 1:
        yield Processes(rank, size, where)
        return
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(rank, size, where)
    finally:
        distributed.destroy_process_group()
