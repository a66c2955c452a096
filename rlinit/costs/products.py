"""Which ops are products of a matrix with parameters, and how large the matrices are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.devices.efficiency import op_class
from rlinit.graph import Graph
from rlinit.units import BITS, compute_type

_AGREES = 0.1
"""Relative difference up to which sizes from bytes and operations agree: biases are beside a matrix."""


class Products(NamedTuple):
    """Products of (m, k) and (k, n) matrices, of which the latter holds parameters; all (q,), for one input."""

    op: IntArray
    m: FloatArray
    n: FloatArray
    k: FloatArray


def number_type(graph: Graph, v: int) -> str:
    """Return the type of numbers that an op computes in; "fp32" where nothing says.

    Parameters
    ----------
    graph, v
        The graph, and the op's number.
    """
    return compute_type(graph.extras.get(v, {})) or "fp32"


def products(graph: Graph) -> Products:
    """Return the ops that are products, by their operations F and numbers of parameters P, inputs X and outputs Y.

    A product has m = 2XY / F rows, k = X / m and n = Y / m, where these agree with P = kn.

    Parameters
    ----------
    graph
        Its ops' kinds say which may be.
    """
    ops = np.array([v for v in range(graph.num_ops) if op_class(graph.kinds[v]) == "matmul"], np.int64)
    width = np.array([BITS[number_type(graph, int(v))] / 8 for v in ops])
    read = np.bincount(graph.edges[:, 1], weights=np.nan_to_num(graph.edge_bytes), minlength=graph.num_ops)[ops] / width
    made = np.nan_to_num(graph.made_bytes)[ops] / width
    with np.errstate(divide="ignore", invalid="ignore"):
        params = np.nan_to_num(graph.param_bytes + graph.unheld_bytes)[ops] / width
        m = np.round(2 * read * made / graph.flops[ops])
        k, n = np.round(read / m), np.round(made / m)
        agrees = np.isfinite(m) & (m >= 1) & (k >= 1) & (n >= 1) & (np.abs(k * n / params - 1) <= _AGREES)
    return Products(ops[agrees], m[agrees], n[agrees], k[agrees])
