"""The pointer network of Inc-ILP: an LSTM reads the graph, another points at one node after the other.

What it reads is a sequence, so the order of the nodes matters to it. Nodes are read by topological level; nodes of one
level by their features (parents' levels, parameters, outputs), and only nodes alike in all of these by their number.
So relabelling a graph changes the result only through such ties and through the hashed id, which is that of the place
in this sequence.

References
----------
Inc-ILP, section III-B: embedding, encoder, decoder, equations 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlinit.agent.sequential.pointing_decoder import PointingDecoder, ragged_log_softmax, ready_pairs
from rlinit.agent.sequential.rollouts import OrderRollouts, PackedGraphs, ready_steps
from rlinit.arrays import FloatArray, IntArray
from rlinit.stages.batch import StageBatch

_PARENTS = 6
"""Parents whose levels are features: the most a node of the training graphs has."""

NUM_FEATURES = 4 + _PARENTS
"""Level, hashed id, parameters, output, levels of parents."""

_TINY = 1e-12


def cosine_reward(found: FloatArray, label: FloatArray) -> FloatArray:
    """Return (B,) cosine similarity of two rows of numbers, for each row of (B, n).

    Parameters
    ----------
    found, label
        (B, n) rows of numbers, as a rule the stages of n nodes.

    References
    ----------
    Inc-ILP, equation 1, with its constant that keeps the quotient valid where all is zero.
    """
    norms = np.sqrt((found**2).sum(axis=1)) * np.sqrt((label**2).sum(axis=1))
    return np.asarray((found * label).sum(axis=1) / np.maximum(norms, _TINY))


def embedding(batch: StageBatch) -> tuple[IntArray, FloatArray]:
    """Return the sequence each graph is read in and the features of its nodes.

    Returns
    -------
    tuple
        (N,) nodes of each graph in the order of reading, and (N, 10) features of these in that order, all from 0 to 1:
        the level over the depth, a hash of the place in the sequence, parameters and output over the graph's largest,
        and the levels of the six deepest parents over the depth, each plus one, so that 0 says that there is none.
    """
    n, ptr, graph = batch.num_nodes, batch.node_ptr, batch.graph_of_node
    shift = ptr[graph]
    depth = np.maximum.reduceat(batch.level, ptr[:-1])[graph] + 2.0
    child = np.repeat(np.arange(n), np.diff(batch.pred_indptr))
    parent_level = batch.level[batch.pred + shift[child]]
    by_child = np.lexsort((-parent_level, child))
    place = np.arange(len(child)) - batch.pred_indptr[child]
    kept = place < _PARENTS
    parents = np.zeros((n, _PARENTS))
    parents[child[kept], place[kept]] = (parent_level[by_child][kept] + 1.0) / depth[child[kept]]
    tensor_shift = ptr[batch.graph_of_tensor]
    sent = np.bincount(batch.tensor_src + tensor_shift, batch.tensor_bytes, n).astype(np.float64)
    param, out = _shares(batch.param, ptr, graph), _shares(sent, ptr, graph)
    order = np.lexsort((np.arange(n), out, param, *parents.T[::-1], batch.level, graph))
    hashed = _hashed(int(np.diff(ptr).max()))[np.arange(n) - shift]
    columns = [((batch.level + 1.0) / depth)[order], hashed, param[order], out[order], *parents[order].T]
    return order - shift, np.stack(columns, axis=1)


def _shares(values: FloatArray, ptr: IntArray, graph: IntArray) -> FloatArray:
    """Return (N,) values over the largest of their graph; zeros where all are."""
    return np.asarray(values / np.maximum(np.maximum.reduceat(values, ptr[:-1]), _TINY)[graph])


def _hashed(n: int) -> FloatArray:
    """Return (n,) numbers in [0, 1): the hash of 0, ..., n - 1 by the finaliser of splitmix64."""
    x = (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(11), np.float64) / 2.0**53


def packed(batch: StageBatch, device: torch.device | str = "cpu") -> PackedGraphs:
    """Return the precedence of some stage problems.

    Parameters
    ----------
    batch
        Of g problems.
    device
        Where tensors are put.
    """
    return PackedGraphs(batch.node_ptr, batch.succ_indptr, batch.succ, batch.pred_indptr, batch.pred, device)


@dataclass(frozen=True, slots=True, eq=False)
class PointerBatch:
    """Graphs as the pointer network reads them.

    Parameters
    ----------
    graphs
        Their precedence.
    nodes
        (g, N) node at each place of the sequence; -1 pads.
    features
        (g, N, 10) float32 features in the order of the sequence; 0 pads.
    """

    graphs: PackedGraphs
    nodes: Tensor
    features: Tensor

    @classmethod
    def of(cls, batch: StageBatch, device: torch.device | str = "cpu") -> PointerBatch:
        """Return some problems as the network reads them.

        Parameters
        ----------
        batch
            Of g problems.
        device
            Where tensors are put.
        """
        graphs = packed(batch, device)
        order, seen = embedding(batch)
        real = np.arange(graphs.width) < np.diff(batch.node_ptr)[:, None]
        nodes = np.full(real.shape, -1, np.int64)
        features = np.zeros((*real.shape, NUM_FEATURES), np.float32)
        nodes[real], features[real] = order, seen
        return cls(graphs, torch.from_numpy(nodes).to(device), torch.from_numpy(features).to(device))


@dataclass(frozen=True, slots=True, eq=False)
class EncodedNodes:
    """What a decoder knows of g graphs.

    Parameters
    ----------
    inputs
        (g, N, H) what a chosen node feeds back.
    latent
        (g, N, H) what is pointed at.
    state
        (g, H) hidden state and cell to begin with.
    """

    inputs: Tensor
    latent: Tensor
    state: tuple[Tensor, Tensor]

    def single(self) -> EncodedNodes:
        """Return the same in float32, whatever precision they were computed in."""
        state = (self.state[0].float(), self.state[1].float())
        return EncodedNodes(self.inputs.float(), self.latent.float(), state)


class PointerNetwork(nn.Module):
    """LSTM encoder and pointing LSTM decoder.

    Parameters
    ----------
    units
        Width of both; the paper has 256.
    """

    def __init__(self, units: int = 256) -> None:
        super().__init__()
        self.units = units
        self.embed = nn.Linear(NUM_FEATURES, units)
        self.encoder = nn.LSTM(units, units, batch_first=True)
        self.decoder = PointingDecoder(units)

    def forward(self, batch: PointerBatch) -> EncodedNodes:
        """Return the graphs as the decoder needs them."""
        x = self.embed(batch.features.to(self.embed.weight.dtype))
        packed = nn.utils.rnn.pack_padded_sequence(
            x, batch.graphs.num_nodes.cpu(), batch_first=True, enforce_sorted=False
        )
        out, (hidden, cell) = self.encoder(packed)
        latent, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=batch.graphs.width)
        # From places in the sequence to nodes; padding goes to a column that is cut off.
        width = batch.graphs.width
        at = torch.where(batch.nodes >= 0, batch.nodes, width)[:, :, None].expand_as(latent)
        by_node = latent.new_zeros((2, len(x), width + 1, x.shape[2]))
        return EncodedNodes(
            by_node[0].scatter(1, at, x.to(latent.dtype))[:, :width],
            by_node[1].scatter(1, at, latent)[:, :width],
            (hidden[0], cell[0]),
        )


def ready_counts(graphs: PackedGraphs, orders: Tensor) -> Tensor:
    """Return (c,) how many nodes were ready at each step of whole orders (g, N), one for each graph, in sequence.

    Parameters
    ----------
    graphs
        g graphs of up to N nodes.
    orders
        (g, N) the node at each step; -1 pads smaller graphs.
    """
    rows = torch.arange(len(orders), device=orders.device)
    row, step, _, _ = ready_pairs(orders, ready_steps(graphs, rows, orders))
    return torch.bincount(row * orders.shape[1] + step, minlength=orders.numel())[(orders >= 0).ravel()]


def order_choices(
    decoder: PointingDecoder,
    encoded: EncodedNodes,
    graphs: PackedGraphs,
    orders: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
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
        (c,) log-probabilities, (c,) entropies in nats, and (c,) the order each is of, steps of an order in sequence.
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
    return chosen[made], entropy[made], made.nonzero()[:, 0] // orders.shape[1]


class OrderDecoding:
    """Orders in the making under a pointing decoder.

    Parameters
    ----------
    decoder, encoded
        The policy.
    rollouts
        B rows over the encoded graphs.
    """

    def __init__(self, decoder: PointingDecoder, encoded: EncodedNodes, rollouts: OrderRollouts) -> None:
        self.decoder = decoder
        self.rollouts = rollouts
        self._projected = decoder.project(encoded.inputs)
        self._keys = decoder.key(encoded.latent)
        rows = rollouts.graph_of_row
        first = decoder.project(decoder.first.expand(len(rows), -1))
        self._state = decoder.step(first, (encoded.state[0][rows], encoded.state[1][rows]))

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return self.rollouts.num_rows

    @property
    def done(self) -> bool:
        """Whether every row is finished."""
        return self.rollouts.steps == self.rollouts.num_steps

    def log_probs(self) -> Tensor:
        """Return (B, N) log-probabilities of the next node, -inf where it is not ready.

        A row that is finished has node 0 alone, with log-probability 0.
        """
        ready = self.rollouts.ready
        count = ready.sum(dim=1)
        # Where one node is ready there is nothing to score, and in networks that is most of the time.
        full = torch.where(ready & (count == 1)[:, None], 0.0, -torch.inf).to(self._keys)
        full[count == 0, 0] = 0.0
        row, node = (ready & (count > 1)[:, None]).nonzero(as_tuple=True)
        asked, query = torch.unique_consecutive(row, return_inverse=True)
        queries, graph = self.decoder.query(self._state[0][asked]), self.rollouts.graph_of_row[row]
        score = self.decoder.point(self._keys[graph, node], queries[query])
        full[row, node] = ragged_log_softmax(score, row, self.num_rows)
        return full

    def choose(self, choice: Tensor) -> None:
        """Take one node in each row, (B,); rows that are finished stay as they are."""
        self.rollouts.take(torch.where(self.rollouts.ready.any(dim=1), choice, -1))
        rows = self.rollouts.ready.any(dim=1).nonzero()[:, 0]
        self._feed(rows, self._projected[self.rollouts.graph_of_row[rows], choice[rows]])

    def _feed(self, rows: Tensor, projected: Tensor) -> None:
        """Bring the decoder's states of some rows (r,) to the next step; finished rows need none."""
        hidden, cell = self.decoder.step(projected, (self._state[0][rows], self._state[1][rows]))
        if len(rows) < self.num_rows:
            hidden, cell = self._state[0].index_copy(0, rows, hidden), self._state[1].index_copy(0, rows, cell)
        self._state = (hidden, cell)
