"""The one-shot agent for stages, from its checkpoint to orders. No torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinit.agent.checkpoint import load_checkpoint
from rlinit.agent.configuration import OneShotConfig
from rlinit.agent.decoding import Decoding, Proposal
from rlinit.agent.inference import OneShotWeights, infer
from rlinit.agent.stage_batch import StageBatch
from rlinit.agent.stage_features import featurise
from rlinit.errors import CheckpointError
from rlinit.kernels.orders import kahn
from rlinit.kernels.stage_features import NUM_STAGE_FEATURES
from rlinit.kernels.stage_rollouts import beam_orders, choice_terms, sample_orders
from rlinit.stages import FloatArray, IntArray, StageProblem

__all__ = ["OneShotStageAgent", "choice_entropy"]

_TEMPERATURES = (1.0, 8.0, 1e9)
"""Draws take these in turn, times the temperature asked for: as the agent says, loosely so, and evenly. Measured: with
one temperature a sure agent draws the same orders again, and 64 draws were worse than 64 even ones on small graphs."""


class OneShotStageAgent:
    """A one-shot agent for stages; an `rlinit.agent.decoding.OrderProposer`.

    Parameters
    ----------
    weights
        Of a network for the problem ``stages``.

    Raises
    ------
    CheckpointError
        The network is for another problem, or for other features than this version computes.
    """

    def __init__(self, weights: OneShotWeights) -> None:
        config = weights.config
        if config.problem != "stages":
            raise CheckpointError(f"the checkpoint is for the problem {config.problem!r}; expected 'stages'")
        if config.node_features != NUM_STAGE_FEATURES:
            raise CheckpointError(
                f"the checkpoint reads {config.node_features} features a node; this version computes "
                f"{NUM_STAGE_FEATURES}. Train it again."
            )
        self.weights = weights

    @classmethod
    def load(cls, path: str | Path) -> OneShotStageAgent:
        """Read an agent from its checkpoint.

        Raises
        ------
        CheckpointError
            The checkpoint is not whole, or of another kind of agent.
        """
        checkpoint = load_checkpoint(path, network="oneshot", problem="stages")
        return cls(OneShotWeights(OneShotConfig.from_dict(dict(checkpoint.card.config)), checkpoint.arrays))

    def keys(self, problem: StageProblem) -> FloatArray:
        """Return (n,) the key of each node."""
        return infer(self.weights, featurise(StageBatch.of_problem(problem))[0])[0]

    def propose(self, problem: StageProblem, decoding: Decoding, seed: int) -> Proposal:
        """Return orders for a problem; see `OrderProposer`."""
        keys = self.keys(problem)
        greedy: IntArray = kahn(keys, problem.succ_indptr, problem.succ, problem.pred_indptr)[None, :]
        entropy = choice_entropy(problem, keys, greedy)
        if decoding.mode == "greedy" or problem.num_nodes == 0:
            return Proposal(greedy, entropy)
        if decoding.mode == "beam":
            logits = keys / decoding.temperature
            found, _ = beam_orders(logits, problem.succ_indptr, problem.succ, problem.pred_indptr, decoding.width)
            return Proposal(np.concatenate([greedy, found[: decoding.width - 1]]), entropy)
        draws = np.empty((decoding.width - 1, problem.num_nodes), np.int64)
        ptr = np.array([0, problem.num_nodes], np.int64)
        for i, temperature in enumerate(_TEMPERATURES):
            count = len(range(i, len(draws), len(_TEMPERATURES)))
            drawn = np.empty((count, problem.num_nodes), np.int64)
            logits = keys / (decoding.temperature * temperature)
            stream = seed * len(_TEMPERATURES) + i
            sample_orders(logits, ptr, problem.succ_indptr, problem.succ, problem.pred_indptr, count, stream, drawn)
            draws[i :: len(_TEMPERATURES)] = drawn
        return Proposal(np.concatenate([greedy, draws]), entropy)


def choice_entropy(problem: StageProblem, keys: FloatArray, order: IntArray) -> FloatArray:
    """Return (n,) the entropy of the choice at which `order` (1, n) takes each node, over its largest possible."""
    ptr = np.array([0, problem.num_nodes], np.int64)
    _, entropy, ready = choice_terms(keys, ptr, problem.succ_indptr, problem.succ, problem.pred_indptr, order)
    share = np.empty(problem.num_nodes)
    share[order[0]] = entropy[0] / np.log(np.maximum(ready[0], 2))
    return share
