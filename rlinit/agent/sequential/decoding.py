"""Decoding step by step: greedy and sampling over the pointer network's choices."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinit.agent.sequential.pointer_network import OrderDecoding

_UNDER_ONE = 1.0 - 1e-12
"""Keeps a uniform number times a total below the total, whatever rounding does."""


def greedy(decoding: OrderDecoding) -> Tensor:
    """Take the likeliest choice (the first of equals) until every row is done; return (B,) log-probabilities."""
    total = torch.zeros(())
    while not decoding.done:
        best = decoding.log_probs().max(dim=1)
        decoding.choose(best.indices)
        total = total + best.values
    return total


def sample(decoding: OrderDecoding, generator: torch.Generator) -> Tensor:
    """Draw choices until every row is done; return (B,) log-probabilities of what was drawn.

    Parameters
    ----------
    decoding
        The rows; advanced in place.
    generator
        Source of randomness, on the CPU: the same draws whatever device computes.
    """
    total = torch.zeros(())
    while not decoding.done:
        log_prob = decoding.log_probs()
        heights = torch.softmax(log_prob.double(), dim=1).cumsum(dim=1)
        draw = torch.rand(decoding.num_rows, generator=generator, dtype=torch.float64).to(heights.device)
        choice = (heights <= (draw * _UNDER_ONE * heights[:, -1])[:, None]).sum(dim=1)
        decoding.choose(choice)
        total = total + log_prob.gather(1, choice[:, None])[:, 0]
    return total
