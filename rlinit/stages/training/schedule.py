"""The order in which every stage runs the passes of its micro-batches, and when they run.

F is a forward pass, B a whole backward pass; zero bubble has I (gradients of the stage's inputs) and W (gradients of
its parameters) in place of B. Three stages, four micro-batches, each pass as long as any other::

    gpipe        0 F0 F1 F2 F3             B0 B1 B2 B3     1f1b         0 F0 F1 F2       B0 F3 B1    B2    B3
                 1    F0 F1 F2 F3       B0 B1 B2 B3                     1    F0 F1    B0 F2 B1 F3 B2    B3
                 2       F0 F1 F2 F3 B0 B1 B2 B3                        2       F0 B0 F1 B1 F2 B2 F3 B3

    zero-bubble  0 F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
                 1    F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
                 2       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlinit.stages.training.rules import Training

__all__ = ["Pass", "PassTimes", "TimedPass", "pass_order", "timed_passes"]

Pass = Literal["F", "B", "I", "W"]


class PassTimes(NamedTuple):
    """Seconds of the passes of one micro-batch on a stage: forward, and backward for inputs and for parameters.

    Half of the stage's transfers and overflow are in either direction; recomputation comes before the backward pass,
    half of which is for the inputs.
    """

    forward_s: float
    inputs_s: float
    params_s: float

    @staticmethod
    def of(forward_s: float, backward_s: float, recompute_s: float, moved_s: float) -> PassTimes:
        """Return the passes of a stage, from its seconds forward, backward, recomputing, and moving tensors.

        Parameters
        ----------
        forward_s, backward_s, recompute_s
            Seconds of a stage's ops for a micro-batch, forward, backward, and forward again.
        moved_s
            Seconds of its tensors.
        """
        half = 0.5 * moved_s
        return PassTimes(forward_s + half, 0.5 * backward_s + recompute_s + half, 0.5 * backward_s)

    def seconds(self, kind: Pass) -> float:
        """Return the seconds of a pass."""
        return {
            "F": self.forward_s,
            "B": self.inputs_s + self.params_s,
            "I": self.inputs_s,
            "W": self.params_s,
        }[kind]


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass of one micro-batch on a stage, in seconds from the start of the step."""

    stage: int
    kind: Pass
    microbatch: int
    start_s: float
    end_s: float


def pass_order(schedule: Training, num_stages: int, microbatches: int, stage: int) -> list[tuple[Pass, int]]:
    """Return the passes of a stage as (kind, micro-batch), in the order in which it runs them.

    Parameters
    ----------
    schedule
        The schedule.
    num_stages
        Stages that hold ops, at most `microbatches` unless the schedule is GPipe.
    microbatches
        Micro-batches m of a step.
    stage
        The stage, from 0.

    Notes
    -----
    ZB-H1 (Qi et al. 2023) follows 1F1B, and stage s runs W as soon as s more micro-batches had their I.
    """
    m = microbatches
    if schedule == "gpipe":
        return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
    split = schedule == "zero-bubble"
    ahead = min(m, num_stages - stage)
    order: list[tuple[Pass, int]] = [("F", i) for i in range(ahead)]
    for i in range(m):
        order.append(("I" if split else "B", i))
        if split and i >= stage:
            order.append(("W", i - stage))
        if ahead + i < m:
            order.append(("F", ahead + i))
    if split:
        order += [("W", i) for i in range(max(0, m - stage), m)]
    return order


def timed_passes(schedule: Training, microbatches: int, times: Sequence[PassTimes]) -> list[TimedPass]:
    """Return every pass of a step, each as soon as the one before it on its stage and the one it reads from are done.

    Parameters
    ----------
    schedule, microbatches
        See `pass_order`.
    times
        Of the stages that hold ops, in their order.
    """
    k = len(times)
    orders = [pass_order(schedule, k, microbatches, j) for j in range(k)]
    at, free = [0] * k, [0.0] * k
    done: dict[tuple[int, str, int], float] = {}
    passes: list[TimedPass] = []
    moved = True
    while moved:
        moved = False
        for j in range(k):
            while at[j] < len(orders[j]):
                kind, i = orders[j][at[j]]
                needs = _needs(j, kind, i, k)
                if needs is not None and needs not in done:
                    break
                start = max(free[j], done[needs] if needs is not None else 0.0)
                free[j] = done[j, "B" if kind == "I" else kind, i] = start + times[j].seconds(kind)
                passes.append(TimedPass(j, kind, i, start, free[j]))
                at[j] += 1
                moved = True
    return passes


def _needs(stage: int, kind: Pass, microbatch: int, k: int) -> tuple[int, str, int] | None:
    """Return the pass of another stage that a pass reads from; what a stage needs of its own comes before it anyway."""
    if kind == "F" and stage > 0:
        return stage - 1, "F", microbatch
    if kind in ("B", "I") and stage < k - 1:
        return stage + 1, "B", microbatch
    return None
