"""The pointer network as an agent for stages: from a checkpoint, or a network, to orders.

It computes in double precision, one problem at a time or many together, so that the same checkpoint, graph and seed
give the same orders on every machine.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from rlinit.agent.network.checkpoint import Checkpoint, load_checkpoint
from rlinit.agent.sequential.decoding import decode, order_choices
from rlinit.agent.sequential.pointer_network import EncodedNodes, PointerBatch, PointerNetwork
from rlinit.agent.stages.decoding import Decoding, Proposal
from rlinit.errors import CheckpointError
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem


class PointerAgent:
    """A pointer network as an agent; an `rlinit.agent.stages.decoding.OrderProposer`.

    Parameters
    ----------
    network
        The network, which is copied.
    """

    def __init__(self, network: PointerNetwork) -> None:
        self.network = copy.deepcopy(network).cpu().double().eval()

    @classmethod
    def load(cls, path: str | Path) -> PointerAgent:
        """Read an agent from its checkpoint.

        Raises
        ------
        CheckpointError
            The checkpoint is not whole, or of another kind of agent.
        """
        return cls(_network_of(load_checkpoint(path, network="pointer", problem="stages"), str(path)))

    def propose(self, problem: StageProblem, decoding: Decoding, seed: int) -> Proposal:
        """Return orders for a problem; see `OrderProposer`.

        For the arguments see `OrderProposer.propose`.
        """
        return self.propose_many([problem], decoding, seed)[0]

    def propose_many(self, problems: Sequence[StageProblem], decoding: Decoding, seed: int) -> list[Proposal]:
        """Return orders for some problems, decoded together.

        Parameters
        ----------
        problems
            At least one. What is drawn for one depends on how many there are, what is decoded otherwise does not.
        decoding, seed
            As for `propose`.
        """
        batch = StageBatch.join([StageBatch.of_problem(problem) for problem in problems])
        with torch.inference_mode():
            seen = PointerBatch.of(batch)
            encoded: EncodedNodes = self.network(seen)
            policy = (self.network.decoder, encoded, seen.graphs)
            greedy = decode(*policy)
            found = [greedy[:, None]]
            if decoding.width > 1:
                found.append(decode(*policy, decoding.width - 1, seed).view(len(problems), decoding.width - 1, -1))
            orders = torch.cat(found, dim=1).numpy()
            _, entropy, row, count = order_choices(*policy, greedy)
            relative = (entropy / torch.log(count.clamp(min=2).to(entropy))).numpy()
        proposals = []
        for i, problem in enumerate(problems):
            by_node = np.empty(problem.num_nodes)
            by_node[orders[i, 0, : problem.num_nodes]] = relative[row.numpy() == i]
            proposals.append(Proposal(orders[i, :, : problem.num_nodes].copy(), by_node))
        return proposals


def _network_of(checkpoint: Checkpoint, source: str) -> PointerNetwork:
    """Return the network a checkpoint describes; CheckpointError where its weights do not fit its card."""
    try:
        network = PointerNetwork(**checkpoint.card.config)
        network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in checkpoint.arrays.items()})
    except (TypeError, RuntimeError) as failure:
        raise CheckpointError(f"{source} is of another architecture than its card says: {failure}") from failure
    return network
