"""How a pipeline trains: the schedule of its micro-batches, what parameters hold, and what is computed twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rlinit.errors import RlinitError

Training = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
"""The order of forward and backward passes: GPipe, PipeDream-flush (1F1B), the same with chunks, or ZB-H1."""

Recompute = Literal["none", "auto", "all"]
"""Which blocks of layers run forward a second time before their backward, rather than keep what is inside them."""

OPTIMIZERS = {"sgd": 2.0, "momentum": 3.0, "adam": 4.0, "adam-bf16": 8.0}
"""Bytes held for each byte of parameters of the graph, by optimiser.

=============  ==============================================================================================
``sgd``        parameters and gradients, of the graph's own type
``momentum``   and one more number for each parameter
``adam``       and two more: fp32 training, 16 bytes for each parameter of 4
``adam-bf16``  bf16 parameters and gradients, fp32 copy and two moments: 16 bytes for each parameter of 2
=============  ==============================================================================================
"""


def schedule_named(name: str) -> Training:
    """Return the schedule of a name.

    Raises
    ------
    RlinitError
        There is none.
    """
    for known in get_args(Training):
        if name == known:
            schedule: Training = known
            return schedule
    raise RlinitError(f"training is {name!r}; expected one of {', '.join(get_args(Training))}")


def optimizer_factor(optimizer: str | float) -> float:
    """Return the bytes held for each byte of parameters: those of a preset, or the number itself.

    Raises
    ------
    RlinitError
        Neither a preset's name nor a finite number of at least 1.
    """
    expected = f"{', '.join(OPTIMIZERS)}, or the bytes held for each byte of parameters, at least 1"
    try:
        factor = OPTIMIZERS[optimizer] if optimizer in OPTIMIZERS else float(optimizer)
    except (TypeError, ValueError):
        factor = 0.0
    if isinstance(optimizer, bool) or not 1.0 <= factor < math.inf:
        raise RlinitError(f"optimizer is {optimizer!r}; expected {expected} (--optimizer on the command line)")
    return factor


@dataclass(frozen=True, slots=True)
class TrainingRules:
    """How a pipeline of stages trains.

    Parameters
    ----------
    schedule
        Order of the passes.
    microbatches
        Parts m of a batch, whose forward and backward passes follow each other through the stages.
    recompute
        Which blocks run forward twice.
    state_factor
        Bytes held for each byte of parameters: those themselves, gradients, the optimiser's state.
    chunks
        Stages of each device: 1, unless the schedule is interleaved.

    Raises
    ------
    RlinitError
        An unknown schedule or choice, fewer than 1 micro-batch, or chunks that the schedule does not have.
    """

    schedule: Training
    microbatches: int
    recompute: Recompute = "none"
    state_factor: float = OPTIMIZERS["adam"]
    chunks: int = 1

    def __post_init__(self) -> None:
        for what, value, known in (
            ("training", self.schedule, get_args(Training)),
            ("recompute", self.recompute, get_args(Recompute)),
        ):
            if value not in known:
                raise RlinitError(f"{what} is {value!r}; expected one of {', '.join(known)}")
        if self.microbatches < 1:
            raise RlinitError(f"microbatches is {self.microbatches}; expected at least 1")
        if (self.schedule == "interleaved") != (self.chunks > 1):
            expected = (
                "at least 2 for training='interleaved'" if self.chunks == 1 else "1 unless training='interleaved'"
            )
            raise RlinitError(f"chunks is {self.chunks}; expected {expected} (--chunks, --training)")

    def check_stages(self, num_stages: int) -> None:
        """Check that the schedule can run on so many devices.

        Raises
        ------
        RlinitError
            It cannot, with so many micro-batches.
        """
        if self.schedule == "interleaved" and self.microbatches % num_stages:
            raise RlinitError(
                f"interleaved on {num_stages} devices needs a multiple of {num_stages} micro-batches, "
                f"but microbatches is {self.microbatches} (--microbatches)"
            )
        if self.schedule != "gpipe" and self.microbatches < num_stages:
            raise RlinitError(
                f"{self.schedule} on {num_stages} stages needs at least as many micro-batches, "
                f"but microbatches is {self.microbatches} (--microbatches)"
            )


def in_flight(rules: TrainingRules, num_stages: int, remaining: int) -> int:
    """Return the micro-batches whose activations a stage holds at most.

    Parameters
    ----------
    rules
        The schedule and its micro-batches.
    num_stages
        Stages k of the pipeline.
    remaining
        Stages from this one to the end that hold ops, this one included.

    Notes
    -----
    GPipe: all m (Huang et al. 2019). 1F1B: ``min(m, remaining)`` (Narayanan et al. 2021). Zero bubble: ZB-H1 of Qi et
    al. 2023, whose stage s holds k - s micro-batches until their backward and s more until the gradients of its
    parameters, ``min(m, k)``; those s hold the gradients inside the stage, too, and count twice. Interleaved stages
    hold what `rlinit.stages.training.schedule.held_microbatches` counts, at least as many as are said here.
    """
    if rules.schedule == "gpipe":
        return rules.microbatches
    if rules.schedule == "zero-bubble":
        return min(rules.microbatches, num_stages) + min(rules.microbatches, num_stages - remaining)
    return min(rules.microbatches, remaining)


def droppable(rules: TrainingRules, flying: int, remaining: int) -> int:
    """Return the micro-batches in flight for which a block that is recomputed holds nothing inside.

    With zero bubble those that wait for the gradients of parameters hold it, since it was made anew before.

    Parameters
    ----------
    rules
        The schedule and its micro-batches.
    flying, remaining
        Micro-batches in flight on a stage, and stages from it to the end that hold ops.
    """
    return min(rules.microbatches, remaining) if rules.schedule == "zero-bubble" else flying
