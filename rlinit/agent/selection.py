"""Which agent schedules a problem: by name, by path, or chosen by problem and size from what was measured."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rlinit.agent.network.checkpoint import load_checkpoint, read_once, shipped
from rlinit.agent.stages.decoding import OrderProposer
from rlinit.errors import CheckpointError, RlinitError
from rlinit.limits import closest
from rlinit.stages.problem import StageProblem

SHIPPED_STAGES = "stages"
"""Name of the checkpoint for stages that comes with the package."""

_MOST_NODES = 20_000
"""Larger graphs than this get no agent unless one is named: decoding takes seconds."""

_WIDEST = 4.0
"""Ops a level, on average, up to which a graph counts as one like real networks (which have 1.1 to 2.5)."""

MOST_PLAYED = 2_000
"""Ops of the largest problem that is played for latency, or gets several orders of stages; both take time."""

_SAMPLES = 16
"""Orders decoded, the greedy one included, for graphs of up to `MOST_PLAYED` nodes; larger ones get the greedy one."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Who proposes orders, how many, and why; without an agent, `reason` says why not."""

    agent: OrderProposer | None
    width: int
    reason: str


def checkpoint_names(problem: str | None = None) -> list[str]:
    """Return the names of the checkpoints that come with the package: all, or those for one kind of problem."""
    cards = [entry for entry in resources.files("rlinit.checkpoints").iterdir() if entry.name.endswith(".json")]
    kinds = {Path(card.name).stem: json.loads(card.read_text(encoding="utf-8")).get("problem") for card in cards}
    # Cards of other learned numbers have no problem and are no agents.
    return sorted(name for name, kind in kinds.items() if kind is not None and problem in (None, kind))


def check_names(method: str, agent: str, methods: Collection[str], heuristics: Collection[str], problem: str) -> None:
    """Raise RlinitError for a method or agent that does not exist for a kind of problem, listing those that do.

    Parameters
    ----------
    method, agent
        What was asked for.
    methods, heuristics
        The names there are; a path ending in ``.safetensors`` is an agent's, too.
    problem
        ``stages`` or ``latency``: whose shipped checkpoints are agents.

    Raises
    ------
    RlinitError
        One is unknown, or `method` is ``agent`` and `agent` a heuristic.
    """
    if method not in methods:
        raise RlinitError(f"unknown method {method!r}{closest(method, methods)} (expected {', '.join(methods)})")
    if agent in heuristics and method == "agent":
        raise RlinitError(f"method 'agent' needs a learned agent, and {agent!r} is a heuristic; use method={agent!r}")
    if agent != "auto" and agent not in heuristics and not agent.endswith(".safetensors"):
        agents = ("auto", *heuristics, *checkpoint_names(problem))
        if agent not in agents:
            raise RlinitError(
                f"unknown agent {agent!r}; expected {', '.join(agents)}, or a path ending in .safetensors"
            )


def find_checkpoint(agent: str) -> Path | None:
    """Return the weights' path of an agent given by name or by path, None if it is neither.

    A path is told by its suffix ``.safetensors``; whether it can be read shows when it is loaded.
    """
    return Path(agent) if agent.endswith(".safetensors") else shipped(agent)


def named_checkpoint(agent: str) -> Path:
    """Return the weights' path of an agent given by name or by path.

    Raises
    ------
    CheckpointError
        It is neither.
    """
    path = find_checkpoint(agent)
    if path is None:
        known = ", ".join(checkpoint_names()) or "none"
        raise CheckpointError(f"there is no checkpoint {agent!r}; those that come with rlinit: {known}")
    return path


@read_once
def load_stage_agent(path: Path) -> OrderProposer:
    """Return the stage agent of a checkpoint, whatever its network; read once for each version of the file.

    Raises
    ------
    CheckpointError
        The checkpoint is not whole, or not for stages.
    """
    checkpoint = load_checkpoint(path, problem="stages")
    if checkpoint.card.network == "oneshot":
        from rlinit.agent.stages.agent import OneShotStageAgent

        return OneShotStageAgent(checkpoint)
    from rlinit.agent.sequential.stage_agent import PointerAgent, network_of

    return PointerAgent(network_of(checkpoint))


def choose_for_stages(problem: StageProblem, name: str) -> StageChoice:
    """Return the agent for a stage problem.

    Parameters
    ----------
    problem
        The problem.
    name
        ``auto``, or the name or path of a checkpoint.

    Raises
    ------
    CheckpointError
        There is no checkpoint of this name, it is not whole, or it is not for stages.

    Notes
    -----
    ``auto`` takes an agent where it was measured to help: on graphs like real networks, with few ops a level, the best
    of 16 orders is as good as annealing at its default length, in a fraction of the time. On wide random graphs
    annealing is better at equal time.
    """
    width = _SAMPLES if problem.num_nodes <= MOST_PLAYED else 1
    how = f"best of {width} orders" if width > 1 else "greedy"
    if name != "auto":
        return StageChoice(load_stage_agent(named_checkpoint(name)), width, f"checkpoint {name}, {how}")
    levels, path = int(problem.level.max()) + 1, shipped(SHIPPED_STAGES)
    if problem.num_nodes > _MOST_NODES:
        return StageChoice(None, width, f"more than {_MOST_NODES:,} ops")
    if problem.num_nodes > _WIDEST * levels:
        return StageChoice(None, width, f"a wide graph ({problem.num_nodes:,} ops on {levels:,} levels)")
    if path is None:
        return StageChoice(None, width, "this installation has no checkpoint for stages")
    return StageChoice(load_stage_agent(path), width, f"checkpoint {SHIPPED_STAGES}, {how}")
