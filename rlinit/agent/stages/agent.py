"""The one-shot agent for stages, from its checkpoint to orders. No torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlinit.agent.network.checkpoint import Checkpoint
from rlinit.agent.network.oneshot_numpy import OneShotWeights, infer
from rlinit.agent.stages.decoding import Proposal
from rlinit.agent.stages.features import featurise
from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.orders import kahn
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.kernels.stages.rollouts import choice_terms, sample_orders
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem

_TEMPERATURES = (8.0, 1e9)
"""Draws take these temperatures in turn: loosely as the agent says, and evenly. Measured: at
temperature 1 an agent that is sure draws the same orders again, and 64 draws are worse than 64 even ones."""

_PASSES, _PASSES_FROM = 3, 50
"""When it may draw, the agent also improves on its own order, in so many passes in all, on graphs of this many nodes
or more; on smaller ones as many draws find more in the time of a pass."""


class OneShotStageAgent:
    """A one-shot agent for stages; an `rlinit.agent.stages.decoding.OrderProposer`.

    Parameters
    ----------
    checkpoint
        Weights and card.

    Raises
    ------
    CheckpointError
        It is of another architecture, for another problem, or for other features than this version computes.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.weights = OneShotWeights.of(checkpoint, "stages", NUM_STAGE_FEATURES, 0, 0)

    def propose(self, problem: StageProblem, width: int, seed: int) -> Proposal:
        """Return orders for a problem; see `OrderProposer`.

        Greedy decoding takes one forward pass. With draws, the orders of further passes, each of which is
        given the order of the one before to improve on, come after the greedy one.

        For the arguments see `OrderProposer.propose`.
        """
        batch = StageBatch.of_problem(problem)
        keys, order = self._pass(batch)
        entropy = choice_entropy(batch, keys, order[None, :])
        found = [order[None, :]]
        if width > 1:
            passes = _PASSES if problem.num_nodes >= _PASSES_FROM else 1
            for _ in range(min(passes, width) - 1):
                keys, order = self._pass(replace(batch, natural=order))
                found.append(order[None, :])
            found.append(_draws(batch, keys, width - len(found), seed))
        return Proposal(np.concatenate(found), entropy)

    def _pass(self, batch: StageBatch) -> tuple[FloatArray, IntArray]:
        """Return (keys, order): (n,) of one forward pass on one problem whose given order is the one to improve on."""
        keys = infer(self.weights, featurise(batch)[0])[0]
        return keys, kahn(keys, batch.succ_indptr, batch.succ, batch.pred_indptr)


def _draws(batch: StageBatch, logits: FloatArray, count: int, seed: int) -> IntArray:
    """Return (count, n) orders of a batch of one problem, drawn at the temperatures in turn."""
    draws = np.empty((count, batch.num_nodes), np.int64)
    for i, temperature in enumerate(_TEMPERATURES):
        part = np.empty_like(draws[i :: len(_TEMPERATURES)])
        stream = seed * len(_TEMPERATURES) + i
        sample_orders(logits / temperature, *batch.precedence, len(part), stream, part)
        draws[i :: len(_TEMPERATURES)] = part
    return draws


def choice_entropy(batch: StageBatch, keys: FloatArray, order: IntArray) -> FloatArray:
    """Return (n,) the entropy of the choice at which `order` (1, n) takes each node, over its largest possible.

    Parameters
    ----------
    batch
        Of one problem of n nodes.
    keys
        (n,) logits: among ready nodes, choices are their softmax.
    order
        (1, n) a topological order.
    """
    _, entropy, ready = choice_terms(keys, *batch.precedence, order)
    share = np.empty(batch.num_nodes)
    share[order[0]] = entropy[0] / np.log(np.maximum(ready[0], 2))
    return share
