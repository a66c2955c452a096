"""The state of many episodes in arrays: what single and vectorised environments are made of.

Rewards are improvements on a reference, from -1 to 1: ``(reference - value) / max(reference, value)``, which is the
relative improvement where there is one, and -1 where nothing is feasible. A dense reward is the change of that figure
when the rest of the schedule is completed by the reference's rule, so that its sum over an episode is the final one.

An action that is masked changes nothing and costs ``1 / n``; n of them truncate the episode.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.placements.features import DEVICE_FEATURES, NODE_FEATURES, PAIR_FEATURES, observe
from rlinit.agent.stages.features import featurise
from rlinit.arrays import BoolArray, FloatArray, IntArray, inverse_of
from rlinit.env.problem_sources import Limits, limits_of
from rlinit.env.steps import EpisodeState, complete, finish_times, place, take_nodes
from rlinit.errors import RlinitError
from rlinit.kernels.placements.list_scheduling import PlacementArrays
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.placements.arrays import kernel_arrays, upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from rlinit.stages.slicing import slice_order

P = TypeVar("P", StageProblem, PlacementProblem)
Observation = dict[str, NDArray[Any]]
EpisodeRewards = Literal["dense", "final"]

_DYNAMIC = 3
"""Columns after the agent's features of a node: ready, taken, and when (place in the order over n)."""


def improvement(value: float, reference: float) -> float:
    """Return ``(reference - value) / max(reference, value)``; 0 where both are 0 or both infinite.

    Parameters
    ----------
    value, reference
        At least 0, perhaps infinite; seconds or bytes.
    """
    if value == reference:
        return 0.0
    if np.isinf(value):
        return -1.0
    return 1.0 if np.isinf(reference) else (reference - value) / max(reference, value)


class Episodes(ABC, Generic[P]):
    """B partial schedules of problems within limits.

    Parameters
    ----------
    num_rows
        B.
    limits
        The largest problem.
    rewards
        ``dense`` or ``final``.

    Attributes
    ----------
    ready
        (B, N) bool: nodes that may be taken.
    order
        (B, N) nodes in the order they were taken, -1 after the last.
    invalid
        (B,) bool: whether the last action was a masked one.
    running
        (B,) bool: whether a row has a schedule that is not finished.
    reference, value
        (B,) what the reference's rule reaches; the value of a row's finished schedule, NaN until then.
    """

    widths: ClassVar[dict[str, int]]
    """Columns of `nodes`, `devices` and `pairs` in observations."""

    def __init__(self, num_rows: int, limits: Limits, rewards: EpisodeRewards) -> None:
        if rewards not in ("dense", "final"):
            raise RlinitError(f"rewards is {rewards!r}; expected 'dense' or 'final'")
        b, n, e = num_rows, limits.nodes, limits.edges
        self.limits, self.rewards = limits, rewards
        self.problems: list[P | None] = [None] * b
        self.ready = np.zeros((b, n), np.bool_)
        self.order = np.full((b, n), -1, np.int64)
        self.steps = np.zeros(b, np.int64)
        self.mistakes = np.zeros(b, np.int64)
        self.invalid, self.running = np.zeros(b, np.bool_), np.zeros(b, np.bool_)
        self.reference, self.value = np.zeros(b), np.full(b, np.nan)
        self._waiting = np.zeros((b, n), np.int64)
        self._succ_indptr, self._succ = np.zeros((b, n + 1), np.int64), np.zeros((b, e), np.int64)
        self._potential = np.zeros(b)
        self._nodes = np.zeros((b, n, self.widths["nodes"]), np.float32)
        self._edges = np.full((b, e, 2), -1, np.int64)

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return len(self.steps)

    def problem(self, row: int) -> P:
        """Return the problem of a row.

        Raises
        ------
        RlinitError
            The row was never reset.
        """
        problem = self.problems[row]
        if problem is None:
            raise RlinitError("the environment was not reset yet; call reset() first")
        return problem

    def load(self, row: int, problem: P) -> None:
        """Begin an episode of a problem in a row.

        Parameters
        ----------
        row
            From 0 to the number of episodes - 1.
        problem
            Within the limits.

        Raises
        ------
        RlinitError
            The problem is larger than the limits.
        """
        size, most = limits_of(problem), self.limits
        for what in ("nodes", "edges", "devices"):
            if getattr(size, what) > getattr(most, what):
                raise RlinitError(f"a problem has {getattr(size, what)} {what}; the environment shows {most}")
        n, succ_indptr = size.nodes, problem.succ_indptr
        self.problems[row] = problem
        self.running[row] = True
        self._succ_indptr[row, : n + 1], self._succ[row, : size.edges] = succ_indptr, problem.succ
        self._waiting[row, :n] = np.diff(problem.pred_indptr)
        self.ready[row] = False
        self.ready[row, :n] = self._waiting[row, :n] == 0
        self.order[row], self.steps[row], self.mistakes[row], self.invalid[row] = -1, 0, 0, False
        self.value[row], self._potential[row] = np.nan, 0.0
        self._edges[row] = -1
        self._edges[row, : size.edges] = np.stack([np.repeat(np.arange(n), np.diff(succ_indptr)), problem.succ], axis=1)
        features = self._features(problem)
        self._nodes[row] = 0.0
        self._nodes[row, :n, :-_DYNAMIC] = features.node
        self._begin(row, problem, features)
        self.reference[row] = self._completed(row)

    def step(self, actions: IntArray) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Act once in each row.

        Parameters
        ----------
        actions
            (B,) actions; rows with -1 stay as they are.

        Returns
        -------
        tuple
            (B,) rewards, (B,) whether each row's schedule is finished (or cannot be), (B,) whether it was cut off.
        """
        rewards, through = np.zeros(self.num_rows), np.zeros(self.num_rows, np.bool_)
        wrong = (actions >= 0) & ~self.masks()[np.arange(self.num_rows), actions]
        taken = np.where(wrong, -1, actions)
        sizes = np.array([limits_of(p).nodes if p is not None else 1 for p in self.problems])
        self.invalid = wrong
        self.mistakes += wrong
        rewards[wrong] -= 1.0 / sizes[wrong]
        nodes = self._act(taken)
        rows = np.flatnonzero(nodes >= 0)
        self.order[rows, self.steps[rows]] = nodes[rows]
        self.steps[rows] += 1
        take_nodes(nodes, self._succ_indptr, self._succ, self._waiting, self.ready)
        self._after(rows)
        for row in rows.tolist():
            through[row] = self.steps[row] == sizes[row] or not self.masks(row).any()
            if through[row]:
                self.value[row] = self._finished(row)
            if through[row] or self.rewards == "dense":
                value = self.value[row] if through[row] else self._completed(row)
                now = improvement(float(value), float(self.reference[row]))
                rewards[row] = now - self._potential[row]
                self._potential[row] = now
        cut = wrong & (self.mistakes >= sizes)
        self.running &= ~(through | cut)
        return rewards, through, cut

    def infos(self) -> dict[str, NDArray[Any]]:
        """Return what goes with the observations; `value` is NaN before the end."""
        return {
            "action_mask": self.masks().astype(np.int8),
            "invalid_action": self.invalid.copy(),
            "reference": self.reference.copy(),
            "value": self.value.copy(),
        }

    def observe(self) -> Observation:
        """Return fresh padded arrays of all rows, (B, ...)."""
        nodes = self._nodes.copy()
        nodes[:, :, -3] = self.ready
        row, step = np.nonzero(self.order >= 0)
        node = self.order[row, step]
        nodes[row, node, -2] = 1.0
        nodes[row, node, -1] = (step + 1.0) / [limits_of(self.problem(b)).nodes for b in row.tolist()]
        np.clip(nodes, -MOST, MOST, out=nodes)
        return {"nodes": nodes, "edges": self._edges.copy(), "action_mask": self.masks().astype(np.int8)}

    @abstractmethod
    def masks(self, row: int | slice = slice(None)) -> BoolArray:
        """Return (B, A) bool: which actions are allowed; or (A,) for one row."""

    @abstractmethod
    def _features(self, problem: P) -> GraphFeatures:
        """Return what the agent sees of a problem."""

    def _begin(self, row: int, problem: P, features: GraphFeatures) -> None:
        """Set up what is not common to all kinds of problems."""

    def _act(self, actions: IntArray) -> IntArray:
        """Carry out allowed actions ((B,), -1: none) and return the nodes they take."""
        return actions

    def _after(self, rows: IntArray) -> None:
        """Bring up to date what depends on which nodes are ready, in some rows."""

    @abstractmethod
    def _completed(self, row: int) -> float:
        """Return the value of the schedule that the reference's rule makes of a row's partial one."""

    def _finished(self, row: int) -> float:
        """Return the value of a row's finished schedule; inf where it cannot be finished."""
        return self._completed(row)


MOST = 1e9
"""Observed numbers are cut off here."""


class StageEpisodes(Episodes[StageProblem]):
    """Orders in the making. An action is a ready node; the order is sliced optimally into stages.

    The reference is the natural order, sliced. Its rule completes an order by the nodes that are left, as they are
    there. The value is the first entry of the problem's value: bottleneck or peak.
    """

    widths: ClassVar[dict[str, int]] = {"nodes": NUM_STAGE_FEATURES + _DYNAMIC}

    def observe(self) -> Observation:
        """Return fresh padded arrays of all rows, (B, ...)."""
        stages = [0.0 if p is None else float(p.num_stages) for p in self.problems]
        return {**super().observe(), "num_stages": np.array(stages, np.float32)[:, None]}

    def masks(self, row: int | slice = slice(None)) -> BoolArray:
        """Return (B, N) bool: the ready nodes."""
        return self.ready[row]

    def _features(self, problem: StageProblem) -> GraphFeatures:
        return featurise(StageBatch.of_problem(problem))[0]

    def _completed(self, row: int) -> float:
        problem, so_far = self.problem(row), self.order[row, : self.steps[row]]
        left = problem.order[~np.isin(problem.order, so_far)]
        found = slice_order(problem, np.concatenate([so_far, left]))
        return np.inf if found is None else found[1][0]


class PlacementEpisodes(Episodes[PlacementProblem]):
    """Placements in the making. An action is ``op * D + device``: the op is appended to the device.

    The reference places ops by descending upward rank, each where it ends first, as does its rule with the ops that
    are left. An episode is over, with the worst reward, when a ready op fits on no device any more.
    """

    widths: ClassVar[dict[str, int]] = {
        "nodes": NODE_FEATURES + _DYNAMIC,
        "devices": DEVICE_FEATURES,
        "pairs": PAIR_FEATURES,
    }

    def __init__(self, num_rows: int, limits: Limits, rewards: EpisodeRewards) -> None:
        super().__init__(num_rows, limits, rewards)
        b, n, d = num_rows, limits.nodes, limits.devices
        self.device = np.full((b, n), -1, np.int64)
        self.finish_s = np.full((b, n, d), np.inf)
        self._sequence: list[IntArray] = [np.zeros(0, np.int64)] * b
        self._arrays: dict[int, PlacementArrays] = {}
        self._state: dict[int, EpisodeState] = {}
        self._shown = {
            "devices": np.zeros((b, d, self.widths["devices"]), np.float32),
            "pairs": np.zeros((b, n, d, self.widths["pairs"]), np.float32),
        }

    def observe(self) -> Observation:
        """Return fresh padded arrays of all rows, (B, ...)."""
        seen = {**super().observe(), **{name: array.copy() for name, array in self._shown.items()}}
        scale = np.where(np.isfinite(self.reference) & (self.reference > 0), self.reference, 1.0)[:, None, None]
        open_ = np.isfinite(self.finish_s) & self.ready[:, :, None]
        finish = np.where(open_, self.finish_s / scale, 0.0)
        return {**seen, "finish": np.minimum(finish, MOST).astype(np.float32)}

    def masks(self, row: int | slice = slice(None)) -> BoolArray:
        """Return (B, N * D) bool: ready ops on devices that take them; all False where a ready op fits nowhere."""
        ready, open_ = self.ready[row], np.isfinite(self.finish_s[row])
        open_ = open_ & ready[..., None]
        stuck = (ready & ~open_.any(axis=-1)).any(axis=-1)
        allowed: BoolArray = (open_ & ~stuck[..., None, None]).reshape(*ready.shape[:-1], -1)
        return allowed

    def placement(self, row: int) -> Placement:
        """Return a row's finished placement."""
        problem = self.problem(row)
        n, d = problem.num_ops, problem.num_devices
        order = self.order[row, :n]
        return Placement(self.device[row, :n, None].copy(), order * d + self.device[row, order])

    def _features(self, problem: PlacementProblem) -> GraphFeatures:
        return observe(problem).features

    def _begin(self, row: int, problem: PlacementProblem, features: GraphFeatures) -> None:
        a, n, d = kernel_arrays(problem), problem.num_ops, problem.num_devices
        self._arrays[row] = a
        nowhere = np.full(n, -1, np.int64)
        self._state[row] = EpisodeState(nowhere, nowhere.copy(), np.zeros(n), np.zeros(d), a.capacity.copy())
        natural = inverse_of(problem.order)
        self._sequence[row] = np.lexsort((natural, -upward_ranks(problem)))
        self.device[row], self.finish_s[row] = -1, np.inf
        for array in self._shown.values():
            array[row] = 0.0
        self._shown["devices"][row, :d] = np.clip(features.device, -MOST, MOST)
        self._shown["pairs"][row, :n, :d] = np.clip(features.pair, -MOST, MOST).reshape(n, d, -1)
        self._after(np.array([row]))

    def _act(self, actions: IntArray) -> IntArray:
        nodes, devices = np.where(actions < 0, -1, actions // self.limits.devices), actions % self.limits.devices
        for row in np.flatnonzero(actions >= 0).tolist():
            v, i = int(nodes[row]), int(devices[row])
            place(self._arrays[row], self._state[row], v, i, self.finish_s[row, v, i])
            self.device[row, v] = i
        return nodes

    def _after(self, rows: IntArray) -> None:
        for row in rows.tolist():
            d = self.problem(row).num_devices
            for v in np.flatnonzero(self.ready[row]).tolist():
                finish_times(self._arrays[row], self._state[row], v, self.finish_s[row, v, :d])

    def _completed(self, row: int) -> float:
        now = self._state[row]
        state = copy.deepcopy(now)
        value = complete(self._arrays[row], state, self._sequence[row])
        problem = self.problem(row)
        if problem.transfers == "parallel" or np.isinf(value):
            return float(value)
        so_far = self.order[row, : self.steps[row]]
        rest = self._sequence[row][self.device[row, self._sequence[row]] < 0]
        order, device = np.concatenate([so_far, rest]), state.device
        return makespan(problem, Placement(device[:, None], order * problem.num_devices + device[order]))

    def _finished(self, row: int) -> float:
        problem = self.problem(row)
        return makespan(problem, self.placement(row)) if self.steps[row] == problem.num_ops else np.inf
