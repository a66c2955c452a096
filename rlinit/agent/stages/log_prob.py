"""The policy of stage agents in torch: exact log-probabilities of orders, with gradients into the keys.

Forward and backward are compiled kernels that replay the orders (`rlinit.kernels.stages.rollouts`), so a batch costs
as much as drawing it did. Keys on a GPU come to the CPU and their gradient goes back: one number a node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinit.arrays import IntArray
from rlinit.kernels.stages.rollouts import choice_gradient, choice_terms, sample_orders
from rlinit.stages.batch import StageBatch


def draw_orders(keys: Tensor, batch: StageBatch, samples: int, seed: int) -> IntArray:
    """Return (samples, N) orders drawn by keys (N,).

    Parameters
    ----------
    keys
        (N,) logits; N nodes of all problems together.
    batch
        The problems.
    samples
        S, orders of each problem.
    seed
        The same seed gives the same orders on every machine.
    """
    orders = np.empty((samples, batch.num_nodes), np.int64)
    logits = keys.detach().to("cpu", torch.float64).numpy()
    sample_orders(logits, *batch.precedence, samples, seed, orders)
    return orders


class _OrderTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, batch: StageBatch, orders: IntArray) -> tuple[Tensor, Tensor, Tensor]:
        logits = keys.detach().to("cpu", torch.float64).contiguous().numpy()
        log_prob, entropy, num_ready = choice_terms(logits, *batch.precedence, orders)
        ctx.batch, ctx.orders, ctx.logits, ctx.keys = batch, orders, logits, (keys.device, keys.dtype)
        ready = torch.from_numpy(num_ready).to(keys.device)
        ctx.mark_non_differentiable(ready)
        return torch.from_numpy(log_prob).to(keys), torch.from_numpy(entropy).to(keys), ready

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        by_log_prob, by_entropy = (grad.to("cpu", torch.float64).contiguous().numpy() for grad in grads[:2])
        batch: StageBatch = ctx.batch
        device, dtype = ctx.keys
        grad = choice_gradient(ctx.logits, *batch.precedence, ctx.orders, by_log_prob, by_entropy)
        return torch.from_numpy(grad).to(device=device, dtype=dtype), None, None


def order_terms(keys: Tensor, batch: StageBatch, orders: IntArray) -> tuple[Tensor, Tensor, Tensor]:
    """Return (log_prob, entropy, num_ready), each (S, N): of the choice at each place of each order.

    Gradients flow into the keys through the first two. Choices among one ready node have zeros.

    Parameters
    ----------
    keys
        (N,) logits.
    batch
        The problems.
    orders
        (S, N) topological orders, from `draw_orders`.
    """
    log_prob, entropy, ready = _OrderTerms.apply(keys, batch, orders)  # type: ignore[no-untyped-call]
    return log_prob, entropy, ready
