"""The shape of a network: what a checkpoint's card says and what both implementations of it are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlinit.errors import CheckpointError

ProblemKind = Literal["stages", "latency"]


@dataclass(frozen=True, slots=True)
class OneShotConfig:
    """Shape of a one-shot agent.

    Parameters
    ----------
    problem
        ``stages`` (a key a node) or ``latency`` (also a score for each node and device).
    node_features, device_features, pair_features
        Widths of the features; the latter two are 0 for stages.
    hidden
        Width of the node states.
    layers
        Rounds of message passing.

    Raises
    ------
    CheckpointError
        A size below 1, an unknown problem, or features of devices for one that has none.
    """

    problem: ProblemKind
    node_features: int
    device_features: int = 0
    pair_features: int = 0
    hidden: int = 64
    layers: int = 5

    def __post_init__(self) -> None:
        if self.problem not in ("stages", "latency"):
            raise CheckpointError(f"problem is {self.problem!r}; expected 'stages' or 'latency'")
        for field in ("node_features", "hidden", "layers"):
            if getattr(self, field) < 1:
                raise CheckpointError(f"{field} is {getattr(self, field)}; expected at least 1")
        if (self.problem == "latency") != (self.device_features > 0 and self.pair_features > 0):
            raise CheckpointError("device_features and pair_features belong to the problem 'latency', and only to it")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OneShotConfig:
        """Return the configuration a card holds.

        Raises
        ------
        CheckpointError
            A key is unknown, missing or out of range.
        """
        try:
            return cls(**data)
        except TypeError as problem:
            raise CheckpointError(f"not the configuration of a one-shot agent: {problem}") from None
