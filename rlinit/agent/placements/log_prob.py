"""How probable a played placement is under given keys and scores: exact, vectorised, differentiable, in torch.

Op v is chosen at step c_v among the ops w that are ready then, r_w <= c_v <= c_w, with probability
``exp(key_v) / sum exp(key_w)``; then device i with probability proportional to
``exp(score_vi - late_weight_vi * late_vi)`` over devices where it may run. See `rlinit.kernels.placements.rollouts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlinit.agent.network.encoder import ragged_log_softmax
from rlinit.arrays import IntArray
from rlinit.kernels.placements.rollout_arrays import RolloutArrays, RolloutTrace


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceLists:
    """The choices of a trace that had more than one candidate; A of ops among E entries, B of devices among F.

    Parameters
    ----------
    op_entry
        (E,) ops that were ready, choice by choice.
    op_choice
        (E,) the choice that each entry belongs to.
    op_chosen
        (A,) the entry that was taken.
    op_trajectory
        (A,) graph * S + sample.
    pair_entry, pair_choice, pair_chosen, pair_trajectory
        (F,), (F,), (B,), (B,) the same for devices; entries are pairs (op, device).
    late
        (F,) of the entries.
    op
        (A + B,) the op that each choice was about, those of ops first.
    """

    op_entry: Tensor
    op_choice: Tensor
    op_chosen: Tensor
    op_trajectory: Tensor
    pair_entry: Tensor
    pair_choice: Tensor
    pair_chosen: Tensor
    pair_trajectory: Tensor
    late: Tensor
    op: IntArray


def choice_lists(arrays: RolloutArrays, trace: RolloutTrace) -> ChoiceLists:
    """Return the choices behind a trace.

    Samples of infinite value are left out: they end at an op that fits nowhere.

    Parameters
    ----------
    arrays
        The problems that were played.
    trace
        What was played: S samples of each, over N ops.
    """
    samples, n = trace.device.shape
    graphs = len(arrays.ptr) - 1
    graph = np.repeat(np.arange(graphs), np.diff(arrays.ptr))
    whole = np.isfinite(trace.value)[:, graph]
    sample, op = np.nonzero(whole)
    trajectory = graph[op] * samples + sample
    # Every op of every sample is an entry of all choices from when it got ready to when it was taken.
    first, chosen = trace.ready[sample, op], trace.chosen[sample, op]
    length = chosen - first + 1
    owner = np.repeat(np.arange(len(op)), length)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length) + first[owner]
    choice = sample[owner] * n + arrays.ptr[graph[op[owner]]] + step
    size = np.bincount(choice, minlength=samples * n)
    entry_kept = size[choice] > 1
    number = np.cumsum(size > 1) - 1
    entries = np.flatnonzero(entry_kept)
    taken = step[entries] == chosen[owner[entries]]
    op_choice = number[choice[entries]]
    op_chosen = _by_choice(op_choice, np.flatnonzero(taken))
    # Devices.
    width = np.diff(arrays.device_ptr)[graph]
    pair_op = np.repeat(np.arange(n), width)
    allowed = np.isfinite(trace.late) & whole[:, pair_op]
    many = np.stack([np.bincount(pair_op[row], minlength=n) for row in allowed]) > 1
    pair_sample, pair = np.nonzero(allowed & many[:, pair_op])
    device_number = (np.cumsum(many.ravel()) - 1).reshape(many.shape)
    pair_choice = device_number[pair_sample, pair_op[pair]]
    within = (
        pair
        - arrays.pair_ptr[graph[pair_op[pair]]]
        - (pair_op[pair] - arrays.ptr[graph[pair_op[pair]]]) * width[pair_op[pair]]
    )
    pair_taken = np.flatnonzero(within == trace.device[pair_sample, pair_op[pair]])
    pair_chosen = _by_choice(pair_choice, pair_taken)
    return ChoiceLists(
        op_entry=torch.from_numpy(op[owner[entries]]),
        op_choice=torch.from_numpy(op_choice),
        op_chosen=torch.from_numpy(op_chosen),
        op_trajectory=torch.from_numpy(trajectory[owner[entries]][op_chosen]),
        pair_entry=torch.from_numpy(pair),
        pair_choice=torch.from_numpy(pair_choice),
        pair_chosen=torch.from_numpy(pair_chosen),
        pair_trajectory=torch.from_numpy((graph[pair_op[pair]] * samples + pair_sample)[pair_chosen]),
        late=torch.from_numpy(trace.late[pair_sample, pair].astype(np.float32)),
        op=np.concatenate([op[owner[entries]][op_chosen], pair_op[pair][pair_chosen]]),
    )


def _by_choice(choice: IntArray, taken: IntArray) -> IntArray:
    """Return the taken entries in the order of their choices."""
    return np.asarray(taken[np.argsort(choice[taken], kind="stable")])


def log_probabilities(
    lists: ChoiceLists, key: Tensor, score: Tensor, late_weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (log-probability, entropy, trajectory) of every choice: ops first, then devices.

    Parameters
    ----------
    lists
        From `choice_lists`.
    key, score, late_weight
        (N,), (P,), (P,) of the network.
    """
    device = key.device
    op = _masked_softmax(
        key.float().index_select(0, lists.op_entry.to(device)), lists.op_choice.to(device), lists.op_chosen.to(device)
    )
    entry = lists.pair_entry.to(device)
    weight = late_weight.float().index_select(0, entry)
    logits = score.float().index_select(0, entry) - weight * lists.late.to(device)
    pair = _masked_softmax(logits, lists.pair_choice.to(device), lists.pair_chosen.to(device))
    trajectory = torch.cat([lists.op_trajectory, lists.pair_trajectory]).to(device)
    return torch.cat([op[0], pair[0]]), torch.cat([op[1], pair[1]]), trajectory


def _masked_softmax(logits: Tensor, choice: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return (log-probability of the chosen entry, entropy) of each choice over its own entries."""
    log_prob = ragged_log_softmax(logits, choice, len(chosen))
    entropy = torch.zeros(len(chosen), device=logits.device).index_add(0, choice, -log_prob.exp() * log_prob)
    return log_prob.index_select(0, chosen), entropy
