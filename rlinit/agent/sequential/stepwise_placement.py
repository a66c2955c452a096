"""The autoregressive agent for latency: from a checkpoint, or a network, to placements.

It computes in double precision, so that the same checkpoint, problem and seed give the same placements on every
machine.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from rlinit.agent.network.checkpoint import load_checkpoint
from rlinit.agent.network.encoder import FeatureTensors
from rlinit.agent.placements.agent import DecodedPlacement, check_latency_features
from rlinit.agent.placements.features import Seen, see
from rlinit.agent.sequential.autoregressive import AutoregressiveNetwork, EncodedPlacements, PlacementDecoding
from rlinit.agent.sequential.decoding import beam, greedy, sample
from rlinit.agent.sequential.rollouts import PlacementRollouts, placements
from rlinit.agent.sequential.stage_agent import network_of
from rlinit.agent.stages.decoding import Decoding
from rlinit.arrays import FloatArray
from rlinit.errors import CheckpointError
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan

__all__ = ["StepwisePlacementAgent"]


class StepwisePlacementAgent:
    """An autoregressive network as an agent; a `rlinit.agent.placements.agent.PlacementAgent`.

    Parameters
    ----------
    network
        A network for latency problems, which is copied.

    Raises
    ------
    CheckpointError
        The network is for stages, or was trained on other features.
    """

    sampling_s: ClassVar[float] = 0.03

    def __init__(self, network: AutoregressiveNetwork) -> None:
        check_latency_features(network.config)
        self.network = copy.deepcopy(network).cpu().double().eval()

    @classmethod
    def load(cls, path: str | Path) -> StepwisePlacementAgent:
        """Read an agent from its checkpoint.

        Raises
        ------
        CheckpointError
            The checkpoint is not whole, or of another kind of agent.
        """
        network = network_of(load_checkpoint(path, network="autoregressive", problem="latency"), str(path))
        if not isinstance(network, AutoregressiveNetwork):
            raise CheckpointError(f"{path} holds a {type(network).__name__}; expected an autoregressive network")
        return cls(network)

    def propose(
        self, problem: PlacementProblem, decoding: Decoding, seed: int
    ) -> tuple[list[Placement | None], FloatArray]:
        """Return placements, the greedy one first, and how undecided the agent was.

        Parameters
        ----------
        problem
            A latency problem; ops are placed whole.
        decoding
            How many placements there are, and how they are found.
        seed
            Of draws.

        Returns
        -------
        tuple
            `decoding.width` placements, None where an op fitted nowhere (or a beam does not exist), and (n,) entropies
            as in `DecodedPlacement`, zeros where the greedy one is None.
        """
        seen = see(problem)
        with torch.inference_mode():
            encoded = self.network.encode_placements(FeatureTensors.of(seen.features))
            first = self._start(problem, seen, encoded, 1)
            greedy(first)
            found = placements([problem], first.placing)
            if decoding.mode == "beam":
                beams, total = beam(self._start(problem, seen, encoded, 1), decoding.width)
                held = placements([problem], beams.placing)
                real = torch.isfinite(total).tolist()
                found += [one if exists else None for one, exists in zip(held, real, strict=True)][:-1]
            elif decoding.width > 1:
                draws = self._start(problem, seen, encoded, decoding.width - 1)
                sample(draws, torch.Generator().manual_seed(seed), decoding.temperature)
                found += placements([problem], draws.placing)
            doubt = np.zeros(problem.num_ops) if found[0] is None else self._doubt(encoded, first)
        return found, doubt

    def decode(self, problem: PlacementProblem, *, samples: int, seed: int) -> DecodedPlacement | None:
        """Return the best of the greedy placement and `samples` drawn ones; see `decode_placement`."""
        decoding = Decoding("sample", samples + 1) if samples else Decoding()
        found, doubt = self.propose(problem, decoding, seed)
        values = [np.inf if one is None else makespan(problem, one) for one in found]
        at = int(np.argmin(values))
        best = found[at]
        return None if best is None else DecodedPlacement(best, values[at], values[0], doubt)

    def _start(self, problem: PlacementProblem, seen: Seen, encoded: EncodedPlacements, rows: int) -> PlacementDecoding:
        scale = torch.from_numpy(seen.arrays.scale)
        return PlacementDecoding(self.network, encoded, PlacementRollouts([problem], rows), scale)

    def _doubt(self, encoded: EncodedPlacements, decoding: PlacementDecoding) -> FloatArray:
        """Return (n,) relative entropies of the choices of devices."""
        played = decoding.played()
        n = played.orders.shape[1]
        _, entropy, _ = self.network.placement_choices(encoded, decoding.placing, played)
        count = torch.isfinite(played.lateness[0]).sum(dim=1).clamp(min=2)
        doubt = np.zeros(n)
        doubt[played.orders[0].numpy()] = (entropy[n:] / torch.log(count.double())).numpy()
        return np.clip(doubt, 0.0, 1.0)
