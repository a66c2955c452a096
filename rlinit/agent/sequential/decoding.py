"""Decoding step by step: greedy, sampling and beam search over the pointer network's choices."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinit.agent.sequential.pointer_network import OrderDecoding

__all__ = ["beam", "greedy", "sample"]

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


def sample(decoding: OrderDecoding, generator: torch.Generator, temperature: float = 1.0) -> Tensor:
    """Draw choices until every row is done; return (B,) log-probabilities of what was drawn, at temperature 1.

    Parameters
    ----------
    decoding
        The rows; advanced in place.
    generator
        Source of randomness, on the CPU: the same draws whatever device computes.
    temperature
        Log-probabilities are divided by it before drawing; > 0.
    """
    total = torch.zeros(())
    while not decoding.done:
        log_prob = decoding.log_probs()
        heights = torch.softmax(log_prob.double() / temperature, dim=1).cumsum(dim=1)
        draw = torch.rand(decoding.num_rows, generator=generator, dtype=torch.float64).to(heights.device)
        choice = (heights <= (draw * _UNDER_ONE * heights[:, -1])[:, None]).sum(dim=1)
        decoding.choose(choice)
        total = total + log_prob.gather(1, choice[:, None])[:, 0]
    return total


def beam(decoding: OrderDecoding, width: int) -> tuple[OrderDecoding, Tensor]:
    """Keep the `width` likeliest partial schedules of each of the given rows until all are done.

    Parameters
    ----------
    decoding
        The rows to start from; left as it is.
    width
        Beams a row.

    Returns
    -------
    tuple
        A decoding with ``B * width`` rows, the beams of a row after one another, likeliest first, and their
        log-probabilities (B * width,), -inf for beams that do not exist because there are fewer schedules.
    """
    num_roots = decoding.num_rows
    beams = decoding.select(torch.arange(num_roots).repeat_interleave(width))
    total = torch.full((num_roots, width), -torch.inf)
    total[:, 0] = 0.0
    while not beams.done:
        step = beams.log_probs()
        total = total.to(step)
        best = (total.view(-1, 1) + step).view(num_roots, -1).topk(width, dim=1)
        total = best.values
        # A beam that does not exist repeats its root's likeliest, so that every row stays a valid schedule.
        at = torch.where(torch.isneginf(total), best.indices[:, :1], best.indices)
        first = width * torch.arange(num_roots, device=at.device)
        beams = beams.select((first[:, None] + at // step.shape[1]).ravel())
        beams.choose((at % step.shape[1]).ravel())
    return beams, total.ravel()
