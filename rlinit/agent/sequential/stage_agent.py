"""The pointer network as an agent for stages: from a checkpoint, or a network, to orders.

It computes in double precision, so that the same checkpoint, graph and seed give the same orders on every machine.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from rlinit.agent.network.checkpoint import Checkpoint
from rlinit.agent.sequential.decoding import decode, order_choices
from rlinit.agent.sequential.pointer_network import PointerBatch, PointerNetwork
from rlinit.agent.stages.decoding import Proposal
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

    def propose(self, problem: StageProblem, width: int, seed: int) -> Proposal:
        """Return orders for a problem; see `OrderProposer`.

        For the arguments see `OrderProposer.propose`.
        """
        with torch.inference_mode():
            seen = PointerBatch.of(StageBatch.of_problem(problem))
            policy = (self.network.decoder, self.network(seen), seen.graphs)
            orders = decode(*policy)
            _, entropy, _, count = order_choices(*policy, orders)
            share = np.empty(problem.num_nodes)
            share[orders[0].numpy()] = (entropy / torch.log(count.clamp(min=2).to(entropy))).numpy()
            if width > 1:
                orders = torch.cat([orders, decode(*policy, width - 1, seed)])
        return Proposal(orders.numpy(), share)


def network_of(checkpoint: Checkpoint) -> PointerNetwork:
    """Return the network of a checkpoint.

    Raises
    ------
    CheckpointError
        Its weights do not fit its card.
    """
    try:
        network = PointerNetwork(**checkpoint.card.config)
        network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in checkpoint.arrays.items()})
    except (TypeError, RuntimeError) as failure:
        raise CheckpointError(f"the checkpoint is of another architecture than its card says: {failure}") from failure
    return network
