"""The order in which every device runs the passes of its micro-batches, and when they run.

F is a forward pass, B a whole backward pass; zero bubble has I (gradients of the stage's inputs) and W (gradients of
its parameters) in place of B. Three stages, four micro-batches, each pass as long as any other::

    gpipe        0 F0 F1 F2 F3             B0 B1 B2 B3     1f1b         0 F0 F1 F2       B0 F3 B1    B2    B3
                 1    F0 F1 F2 F3       B0 B1 B2 B3                     1    F0 F1    B0 F2 B1 F3 B2    B3
                 2       F0 F1 F2 F3 B0 B1 B2 B3                        2       F0 B0 F1 B1 F2 B2 F3 B3

    zero-bubble  0 F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
                 1    F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
                 2       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

With interleaved stages (two devices, two chunks each; f and b are passes of the second chunk, stages 2 and 3),
micro-batches go through the first chunks in groups as large as there are devices, then through the second ones::

    interleaved  0 F0 F1 f0 f1    F2 b0 F3 b1 f2 B0 f3 B1    b2    b3 B2    B3
                 1    F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlinit.stages.training.rules import Training

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


def pass_order(
    schedule: Training, num_devices: int, microbatches: int, device: int, chunks: int = 1
) -> list[tuple[Pass, int, int]]:
    """Return the passes of a device as (kind, micro-batch, stage), in the order in which it runs them.

    Parameters
    ----------
    schedule
        The schedule.
    num_devices
        Devices k that hold ops, at most `microbatches` unless the schedule is GPipe.
    microbatches
        Micro-batches m of a step, a multiple of k where there are several chunks.
    device
        The device, from 0.
    chunks
        Stages of each device; stage j is on device j mod k.

    Notes
    -----
    ZB-H1 (Qi et al. 2023) follows 1F1B, and device s runs W as soon as s more micro-batches had their I. Interleaved
    1F1B is that of Megatron-LM (Narayanan et al. 2021).
    """
    k, total, split = num_devices, microbatches * chunks, schedule == "zero-bubble"

    def stage(i: int, *, backward: bool) -> tuple[int, int]:
        """Return the micro-batch and stage of the i-th forward or backward pass: k micro-batches a chunk in turn."""
        turn, place = divmod(i, k)
        chunk = chunks - 1 - turn % chunks if backward else turn % chunks
        return turn // chunks * k + place, chunk * k + device

    ahead = k - device if chunks == 1 else (chunks - 1) * k + 2 * (k - 1 - device) + 1
    ahead = total if schedule == "gpipe" else min(total, ahead)
    order: list[tuple[Pass, int, int]] = [("F", *stage(i, backward=False)) for i in range(ahead)]
    for i in range(total):
        order.append(("I" if split else "B", *stage(i, backward=True)))
        if split and i >= device:
            order.append(("W", *stage(i - device, backward=True)))
        if ahead + i < total:
            order.append(("F", *stage(ahead + i, backward=False)))
    if split:
        order += [("W", *stage(i, backward=True)) for i in range(max(0, total - device), total)]
    return order


def held_microbatches(schedule: Training, num_devices: int, microbatches: int, chunks: int) -> list[int]:
    """Return the most micro-batches that each stage holds at once, from a forward pass to the end of its backward.

    Parameters
    ----------
    schedule, num_devices, microbatches, chunks
        See `pass_order`.
    """
    most = [0] * (num_devices * chunks)
    for device in range(num_devices):
        now = [0] * len(most)
        for kind, _, stage in pass_order(schedule, num_devices, microbatches, device, chunks):
            now[stage] += {"F": 1, "I": 0}.get(kind, -1)
            most[stage] = max(most[stage], now[stage])
    return most


def timed_passes(schedule: Training, microbatches: int, times: Sequence[PassTimes], chunks: int = 1) -> list[TimedPass]:
    """Return every pass of a step, each as soon as the one before it on its device and the one it reads from are done.

    Parameters
    ----------
    schedule, microbatches, chunks
        See `pass_order`.
    times
        Of the stages in their order; without chunks, of those that hold ops.
    """
    num_stages = len(times)
    k = num_stages // chunks
    orders = [pass_order(schedule, k, microbatches, device, chunks) for device in range(k)]
    at, free = [0] * k, [0.0] * k
    done: dict[tuple[int, str, int], float] = {}
    passes: list[TimedPass] = []
    moved = True
    while moved:
        moved = False
        for device in range(k):
            while at[device] < len(orders[device]):
                kind, i, j = orders[device][at[device]]
                needs = _needs(j, kind, i, num_stages)
                if needs is not None and needs not in done:
                    break
                start = max(free[device], done[needs] if needs is not None else 0.0)
                free[device] = done[j, "B" if kind == "I" else kind, i] = start + times[j].seconds(kind)
                passes.append(TimedPass(j, kind, i, start, free[device]))
                at[device] += 1
                moved = True
    return passes


def _needs(stage: int, kind: Pass, microbatch: int, num_stages: int) -> tuple[int, str, int] | None:
    """Return the pass of another stage that a pass reads from; what a stage needs of its own comes before it anyway."""
    if kind == "F" and stage > 0:
        return stage - 1, "F", microbatch
    if kind in ("B", "I") and stage < num_stages - 1:
        return stage + 1, "B", microbatch
    return None
