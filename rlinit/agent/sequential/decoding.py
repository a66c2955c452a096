"""Topological orders that a pointing decoder takes step by step, and the exact probability of orders already taken.

A *row* is one order in the making; rows of one graph follow each other. One step of all rows is a few tensor
operations. Rows of graphs with fewer nodes than the largest are done earlier and stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinit.agent.network.encoder import ragged_log_softmax
from rlinit.agent.sequential.pointer_network import EncodedNodes, PackedGraphs
from rlinit.agent.sequential.pointing_decoder import PointingDecoder
from rlinit.arrays import ROUNDING


def decode(
    decoder: PointingDecoder, encoded: EncodedNodes, graphs: PackedGraphs, copies: int = 1, seed: int | None = None
) -> Tensor:
    """Return (B, N) orders, `copies` of each of g graphs after one another; -1 after a graph's last node.

    Parameters
    ----------
    decoder, encoded, graphs
        The policy and g graphs of up to N nodes.
    copies
        Orders of each graph.
    seed
        Of draws, which are made on the CPU: the same whatever device computes. None: the likeliest node at each step,
        the first of equals, in one order of each graph.
    """
    device = encoded.inputs.device
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    graph = torch.arange(len(encoded.inputs), device=device).repeat_interleave(1 if seed is None else copies)
    waiting = graphs.in_degree[graph]
    ready = (waiting == 0) & (torch.arange(graphs.width, device=device) < graphs.num_nodes[graph, None])
    orders = torch.full_like(waiting, -1)
    projected, keys = decoder.project(encoded.inputs), decoder.key(encoded.latent)
    hidden, cell = decoder.step(
        decoder.project(decoder.first.expand(len(graph), -1)), (encoded.state[0][graph], encoded.state[1][graph])
    )
    for step in range(graphs.width):
        rows = ready.any(dim=1).nonzero()[:, 0]
        log_prob = _log_probs(decoder, keys, hidden, graph, ready)
        node = (log_prob.argmax(dim=1) if generator is None else _drawn(log_prob, generator))[rows]
        orders[rows, step] = node
        ready[rows, node] = False
        which, child = graphs.successors(graph[rows], node)
        waiting[rows[which], child] -= 1
        ready[rows[which], child] = waiting[rows[which], child] == 0
        hidden[rows], cell[rows] = decoder.step(projected[graph[rows], node], (hidden[rows], cell[rows]))
    return orders


def _log_probs(decoder: PointingDecoder, keys: Tensor, hidden: Tensor, graph: Tensor, ready: Tensor) -> Tensor:
    """Return (B, N) log-probabilities of the next node, -inf where it is not `ready`.

    A row that is done has node 0 alone, with log-probability 0.
    """
    count = ready.sum(dim=1)
    # Where one node is ready there is nothing to score, and in networks that is most of the time.
    full = torch.where(ready & (count == 1)[:, None], 0.0, -torch.inf).to(keys)
    full[count == 0, 0] = 0.0
    row, node = (ready & (count > 1)[:, None]).nonzero(as_tuple=True)
    asked, query = torch.unique_consecutive(row, return_inverse=True)
    score = decoder.point(keys[graph[row], node], decoder.query(hidden[asked])[query])
    full[row, node] = ragged_log_softmax(score, row, len(ready))
    return full


def _drawn(log_prob: Tensor, generator: torch.Generator) -> Tensor:
    """Return (B,) nodes drawn by log-probabilities (B, N)."""
    heights = torch.softmax(log_prob.double(), dim=1).cumsum(dim=1)
    draw = torch.rand(len(log_prob), generator=generator, dtype=torch.float64).to(heights.device)
    return (heights <= (draw * (1.0 - ROUNDING) * heights[:, -1])[:, None]).sum(dim=1)


def ready_steps(graphs: PackedGraphs, graph: Tensor, orders: Tensor) -> Tensor:
    """Return (B, N) step from which each node is ready under whole orders: 0, or one after its last predecessor.

    Parameters
    ----------
    graphs, graph
        The graphs, and which one each row (B,) is about.
    orders
        (B, N) node of each step, -1 after the last.
    """
    num_rows, width = orders.shape
    position = torch.zeros((num_rows, width + 1), dtype=torch.int64, device=orders.device)
    steps = torch.arange(width, device=orders.device)
    position.scatter_(1, torch.where(orders >= 0, orders, width), steps.expand_as(orders))
    which, parent = graphs.predecessors(graph.repeat_interleave(width), steps.repeat(num_rows))
    after = position[which // width, parent] + 1
    first = torch.zeros(num_rows * width, dtype=torch.int64, device=orders.device)
    return first.scatter_reduce_(0, which, after, "amax").view(num_rows, width)


def ready_pairs(orders: Tensor, ready_from: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which nodes were ready at which step of given orders, as a flat list, without stepping through them.

    Parameters
    ----------
    orders
        (B, N) node taken at each step; -1 after the last.
    ready_from
        (B, N) step from which each node is ready: one more than the last of its predecessors, 0 without any.

    Returns
    -------
    tuple
        (row, step, node, taken) of each pair, (p,) each; `taken` is True where the node is the one that was taken.
    """
    row, step = (orders >= 0).nonzero(as_tuple=True)
    node = orders[row, step]
    first = ready_from[row, node]
    counts = step - first + 1
    which = torch.repeat_interleave(torch.arange(len(row), device=orders.device), counts)
    before = counts.cumsum(0) - counts
    at = torch.arange(len(which), device=orders.device) - before[which] + first[which]
    return row[which], at, node[which], at == step[which]


def order_choices(
    decoder: PointingDecoder, encoded: EncodedNodes, graphs: PackedGraphs, orders: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probability and entropy of every choice of given orders, differentiable.

    Parameters
    ----------
    decoder, encoded, graphs
        The policy and g graphs.
    orders
        (B, N) orders, B a multiple of g, those of one graph after one another; -1 after the last node.

    Returns
    -------
    tuple
        (c,) log-probabilities, (c,) entropies in nats, (c,) the order each is of, steps of an order in sequence, and
        (c,) how many nodes were ready.
    """
    inputs, latent, state = encoded.inputs, encoded.latent, encoded.state
    graph = torch.arange(len(inputs), device=orders.device).repeat_interleave(len(orders) // len(inputs))
    nodes = inputs[graph[:, None], orders[:, :-1].clamp(min=0)]
    hidden = decoder.run(nodes, (state[0][graph], state[1][graph]))
    row, step, node, taken = ready_pairs(orders, ready_steps(graphs, graph, orders))
    keys, queries = decoder.key(latent), decoder.query(hidden)
    score = decoder.point(keys[graph[row], node], queries[row, step])
    choice = row * orders.shape[1] + step
    log_prob = ragged_log_softmax(score, choice, orders.numel())
    entropy = -log_prob.new_zeros(orders.numel()).index_add(0, choice, log_prob.exp() * log_prob)
    made = (orders >= 0).ravel()
    chosen = log_prob.new_zeros(orders.numel()).index_add(0, choice[taken], log_prob[taken])
    count = torch.bincount(choice, minlength=orders.numel())
    return chosen[made], entropy[made], made.nonzero()[:, 0] // orders.shape[1], count[made]
