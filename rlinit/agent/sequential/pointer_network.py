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

from rlinit.agent.sequential.pointing_decoder import PointingDecoder
from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.stages.batch import StageBatch

_PARENTS = 6
"""Parents whose levels are features: the most a node of the training graphs has."""

NUM_FEATURES = 4 + _PARENTS
"""Level, hashed id, parameters, output, levels of parents."""


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
    return np.asarray((found * label).sum(axis=1) / np.maximum(norms, ROUNDING))


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
    return np.asarray(values / np.maximum(np.maximum.reduceat(values, ptr[:-1]), ROUNDING)[graph])


def _hashed(n: int) -> FloatArray:
    """Return (n,) numbers in [0, 1): the hash of 0, ..., n - 1 by the finaliser of splitmix64."""
    x = (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(11), np.float64) / 2.0**53


class PackedGraphs:
    """The precedence of g graphs of at most N nodes each, on one device.

    Parameters
    ----------
    batch
        Stage problems, of which the precedence is taken.
    device
        Where the tensors are.

    Attributes
    ----------
    width
        N, the nodes of the largest graph.
    num_nodes
        (g,) nodes of each graph.
    in_degree
        (g, N) predecessors of each node; 0 beyond a graph's nodes.
    """

    def __init__(self, batch: StageBatch, device: torch.device | str = "cpu") -> None:
        sizes = np.diff(batch.node_ptr)
        self.width = int(sizes.max())
        real = np.arange(self.width) < sizes[:, None]
        tables = []
        for indptr in (batch.succ_indptr, batch.pred_indptr):
            counts = np.zeros(real.shape, np.int64)
            counts[real] = np.diff(indptr)
            tables.append(torch.from_numpy(np.concatenate([[0], np.cumsum(counts.ravel())])).to(device))
        self.num_nodes = torch.from_numpy(sizes).to(device)
        self._succ_indptr, self._pred_indptr = tables
        self._succ, self._pred = torch.from_numpy(batch.succ).to(device), torch.from_numpy(batch.pred).to(device)
        self.in_degree = self._pred_indptr.diff().view(len(sizes), self.width)

    def successors(self, graph: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return (which, successor), (k,) each, of nodes of graphs; `which` counts from 0 to r - 1.

        Parameters
        ----------
        graph, node
            (r,) graphs, and a node of each.
        """
        return _ragged(self._succ_indptr, self._succ, graph * self.width + node)

    def predecessors(self, graph: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return (which, predecessor), (k,) each, of nodes of graphs; `which` counts from 0 to r - 1.

        Parameters
        ----------
        graph, node
            (r,) graphs, and a node of each.
        """
        return _ragged(self._pred_indptr, self._pred, graph * self.width + node)


def _ragged(indptr: Tensor, values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return (which, value) for every value of the CSR rows `at` (r,); `which` (k,) counts from 0 to r - 1."""
    first = indptr[at]
    counts = indptr[at + 1] - first
    which = torch.repeat_interleave(torch.arange(len(at), device=at.device), counts)
    before = counts.cumsum(0) - counts
    return which, values[torch.arange(len(which), device=at.device) + (first - before)[which]]


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
        graphs = PackedGraphs(batch, device)
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
