"""From stage problems to features: the base order, its slicing, and what they say of each node."""

from __future__ import annotations

import numpy as np

from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.stages.arrays import Precedence
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES, stage_features
from rlinit.kernels.stages.rollouts import slice_values
from rlinit.stages.batch import StageBatch

BASE_STEP = 0.1
"""How much the base key falls from one place of the natural order to the next: a draw strays some ten places."""


def slice_orders(
    batch: StageBatch, orders: IntArray, first_guess: FloatArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Return (values, ends): (G, S) bottleneck or peak of the best slicing of each order, and (S, K) where stages end.

    Parameters
    ----------
    batch
        The problems.
    orders
        (S, N) topological orders.
    first_guess
        (G,) values most orders reach; where slicing starts to look. Default: one and a half times the mean load.
    """
    values = np.empty((len(batch), len(orders)))
    ends = np.empty((len(orders), int(batch.num_stages.sum())), np.int64)
    if first_guess is None:
        total = np.bincount(batch.graph_of_node, weights=batch.load, minlength=len(batch))
        first_guess = 1.5 * total / batch.num_stages
    slice_values(orders, first_guess, batch.slice_arrays, values, ends)
    return values, ends


def featurise(batch: StageBatch) -> tuple[GraphFeatures, FloatArray]:
    """Return the features of stage problems, and (G,) the values of their sliced natural orders.

    The features of a problem whose natural order cannot be sliced within the capacities see one stage.
    """
    values, ends = slice_orders(batch, batch.natural[None, :])
    shift = batch.node_ptr[batch.graph_of_node]
    base_key = np.empty(batch.num_nodes)
    base_key[batch.natural + shift] = -BASE_STEP * (np.arange(batch.num_nodes) - shift)
    failed = np.repeat(~np.isfinite(values[:, 0]), batch.num_stages)
    ends[0, failed] = np.repeat(np.diff(batch.node_ptr), batch.num_stages)[failed]
    node = np.empty((batch.num_nodes, NUM_STAGE_FEATURES))
    near = Precedence(batch.succ_indptr, batch.succ, batch.pred_indptr, batch.pred)
    stage_features(batch.natural, ends[0], batch.slice_arrays, near, batch.level, node)
    features = GraphFeatures(
        node=node,
        pred_indptr=batch.pred_indptr,
        pred=batch.pred + np.repeat(shift, np.diff(batch.pred_indptr)),
        succ_indptr=batch.succ_indptr,
        succ=batch.succ + np.repeat(shift, np.diff(batch.succ_indptr)),
        ptr=batch.node_ptr,
        base_key=base_key,
        device=np.zeros((0, 0)),
        device_ptr=np.zeros(len(batch) + 1, np.int64),
        pair=np.zeros((0, 0)),
    )
    return features, values[:, 0]
