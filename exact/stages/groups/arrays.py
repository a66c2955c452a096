"""Arrays of passes over pairs of ideals for stages of several devices: what they know, and their room."""

from __future__ import annotations

from typing import NamedTuple

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.stages.ideals.passes import Crossings


class GroupSums(NamedTuple):
    """Sums over the nodes of each of p ideals: the least of each node's variants.

    Differences of two sums are off by rounding: by no more than `error_s` and, for each micro-batch in flight,
    `error_bytes`, both (c,).

    Parameters
    ----------
    time, gradient, held, fixed, shared
        (p, c) seconds, bytes in flight, bytes held once, and bytes that replicas share, by degree index.
    lacking
        (p, c) how many nodes have no variant.
    devices_s, devices_bytes
        (p,) least seconds of devices that the nodes take, and bytes of devices that they fill, in any form, by worth.
    exchanged
        (p, c) bytes of parameters that replicas on several kinds exchange.
    """

    time: FloatArray
    gradient: FloatArray
    held: FloatArray
    fixed: FloatArray
    shared: FloatArray
    lacking: IntArray
    devices_s: FloatArray
    devices_bytes: FloatArray
    exchanged: FloatArray
    error_s: FloatArray
    error_bytes: FloatArray


class Lattice(NamedTuple):
    """Ideals, and what moves at their borders.

    Parameters
    ----------
    crossings
        Members and tensors of the ideals.
    transfer_s
        (c, m) seconds of each tensor on either side of a border.
    """

    crossings: Crossings
    transfer_s: FloatArray


class VariantArrays(NamedTuple):
    """What each variant takes: `GroupProblem`, with nodes by bit (`node_of`, `bit_of`) and its neighbours."""

    row_indptr: IntArray
    time: FloatArray
    gradient: FloatArray
    held: FloatArray
    fixed: FloatArray
    shared: FloatArray
    sync_indptr: IntArray
    sync_s: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    node_of: IntArray
    bit_of: IntArray


class GroupLimits(NamedTuple):
    """Degrees (c,), numbers of replicas (q,), devices, replicas of all stages, bytes (c,), and micro-batches in flight.

    `kind` and `worth` (c,) are those of a form and of one replica of it, `counts`, `stride` and `kind_worth` (k,) of a
    kind of devices, of which the first has stride 0. `used` (cells, k) and `cell_worth` (cells,) are the devices that a
    cell stands for, none of the first kind, and what they are worth. `share` (c, q) is `GroupProblem.gradient_share`,
    times `speed` over replicas.
    `flying`: 0 for one, 1 for those of the replicas from the stage on, 2 for all of `microbatches`.
    `taken`, `speed` and `part` (q,) are micro-batches of each replica, how many of those a batch is, and the part of
    shared bytes. `mixes` (x, k), `mix_worth`, `mix_s` and `most_params` are of stages on several kinds: `GroupProblem`;
    `mix_total` (x,) counts replicas. Mixes that differ in replicas of the first kind alone are a row, the fewest first,
    which begins at `mix_first` (rows + 1,). `form_of` (g, k) is the form of each tensor degree on each kind, -1 where
    there is none.
    """

    degrees: IntArray
    kind: IntArray
    worth: IntArray
    counts: IntArray
    stride: IntArray
    kind_worth: IntArray
    all_worth: int
    used: IntArray
    cell_worth: IntArray
    replicas: IntArray
    share: FloatArray
    most_replicas: int
    memory: FloatArray
    microbatches: int
    flying: int
    taken: IntArray
    speed: FloatArray
    part: FloatArray
    mixes: IntArray
    mix_first: IntArray
    mix_total: IntArray
    mix_worth: IntArray
    mix_s: FloatArray
    most_params: FloatArray
    form_of: IntArray


class StageRows(NamedTuple):
    """Room for the rows of a stage: nodes, where each one's rows begin, and their figures."""

    node: IntArray
    first: IntArray
    row: IntArray
    busy: FloatArray
    cost: FloatArray
    size: FloatArray
    choice: IntArray


class GroupData(NamedTuple):
    """What passes know of a problem."""

    sums: GroupSums
    variants: VariantArrays
    limits: GroupLimits
    lattice: Lattice


class Growing(NamedTuple):
    """Labels, and room for those of the ideal at hand.

    Parameters
    ----------
    ends, labels
        See `group_pass`.
    best, came
        (cells, replicas) fewest devices of the first kind, and where such a label came from.
    rows
        Of a stage.
    """

    ends: IntArray
    labels: IntArray
    best: IntArray
    came: IntArray
    rows: StageRows


class Shares(NamedTuple):
    """Which mixes stages between two ideals may have, and what their replicas take of a batch.

    Parameters
    ----------
    seconds, exchanged
        (k,) on each kind, at least: of a micro-batch, and bytes of parameters that replicas exchange.
    most
        (k,) micro-batches that a replica takes at most.
    turn
        (rows,) the first mix of each row that is not known to be too few.
    """

    seconds: FloatArray
    exchanged: FloatArray
    most: IntArray
    turn: IntArray
