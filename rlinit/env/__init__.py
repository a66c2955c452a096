"""Gymnasium environments: stage scheduling and placement, one action an op. Importing registers them.

=============================  ==========================================================================
id                             action
=============================  ==========================================================================
``rlinit/StageScheduling-v0``  the next op, among the ready ones; the order is sliced into stages
``rlinit/Placement-v0``         the next op, and the device it is appended to
=============================  ==========================================================================

``gymnasium.make_vec(id, num_envs=B, vectorization_mode="vector_entry_point")`` gives B episodes that step together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.env.problem_sources import Limits, OneProblem, ProblemSource
from rlinit.errors import imported
from rlinit.late import late_names

if TYPE_CHECKING:
    from rlinit.env.environments import PlacementEnv, StageEnv
    from rlinit.env.vector_environments import PlacementVectorEnv, StageVectorEnv

__all__ = [
    "PLACEMENT",
    "STAGES",
    "Limits",
    "OneProblem",
    "PlacementEnv",
    "PlacementVectorEnv",
    "ProblemSource",
    "StageEnv",
    "StageVectorEnv",
]

STAGES, PLACEMENT = "rlinit/StageScheduling-v0", "rlinit/Placement-v0"
"""The ids."""

__getattr__, _ = late_names(__name__)


def _register() -> None:
    registration = imported("gymnasium.envs.registration", "playing environments", "rlinit[agent]")
    for name, kind in ((STAGES, "Stage"), (PLACEMENT, "Placement")):
        registration.register(
            id=name,
            entry_point=f"rlinit.env.environments:{kind}Env",
            vector_entry_point=f"rlinit.env.vector_environments:{kind}VectorEnv",
        )


_register()
