"""Which agent places a latency problem: by name, by path, or by what was measured; where none, why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinit.agent.network.checkpoint import load_checkpoint, read_once, shipped
from rlinit.agent.placements.agent import LatencyAgent
from rlinit.agent.selection import MOST_PLAYED, named_checkpoint
from rlinit.errors import CheckpointError
from rlinit.placements.arrays import mean_transfer_s
from rlinit.placements.problem import PlacementProblem

MOST_PAIRS = 8_000
"""Pairs of op and device, beyond which it was not judged."""

_LEAST_SHARE = 0.7
"""Share of pairs of op and device that are allowed, from which it pays in a tenth of a second where nothing is moved:
with 0.6 it lost, with 0.8 it was open (docs/learning.md)."""


@dataclass(frozen=True, slots=True)
class LatencyChoice:
    """Who proposes placements, and why; without an agent, `reason` says why not."""

    agent: LatencyAgent | None
    reason: str


def choose_for_latency(problem: PlacementProblem, name: str) -> LatencyChoice:
    """Return the agent for a placement problem.

    Parameters
    ----------
    problem
        The problem.
    name
        ``auto``, or the name or path of a checkpoint.

    Raises
    ------
    CheckpointError
        There is no checkpoint of this name, it is not whole, not for latency, or the problem splits ops and a
        checkpoint was asked for by name.
    """
    if name != "auto":
        path = named_checkpoint(name)
        if problem.num_shards > 1:
            raise CheckpointError(f"checkpoint {name!r} places whole ops; this problem splits them into shards")
        return LatencyChoice(load_latency_agent(path), f"checkpoint {name}")
    shipped_path = shipped("latency")
    if problem.num_shards > 1:
        return LatencyChoice(None, "ops are split into shards")
    if problem.num_ops > MOST_PLAYED:
        return LatencyChoice(None, f"more than {MOST_PLAYED:,} ops")
    if problem.num_ops * problem.num_devices > MOST_PAIRS:
        return LatencyChoice(None, f"more than {MOST_PAIRS:,} pairs of op and device")
    if shipped_path is None:
        return LatencyChoice(None, "this installation has no checkpoint for latency")
    return LatencyChoice(load_latency_agent(shipped_path), "checkpoint latency")


def leaves_choice(problem: PlacementProblem) -> bool:
    """Return whether the choice of devices is worth asking about in a tenth of a second.

    It is where something has to be moved, or where devices differ and most ops may run on most of them: elsewhere the
    earliest finish says as much, and search has more of the time.

    Parameters
    ----------
    problem
        A latency problem.
    """
    seconds = problem.op_time_s
    differ = bool((seconds != seconds[:, :1]).any())
    open_to_most = float(np.isfinite(seconds).mean()) >= _LEAST_SHARE
    return (differ and open_to_most) or bool(mean_transfer_s(problem).any())


@read_once
def load_latency_agent(path: Path) -> LatencyAgent:
    """Return the latency agent of a checkpoint; read once for each version of the file.

    Raises
    ------
    CheckpointError
        The checkpoint is not whole, or not for latency.
    """
    return LatencyAgent(load_checkpoint(path, network="oneshot", problem="latency"))
