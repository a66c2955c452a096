"""The state of an episode in arrays: what environments are made of.

The reward, after the last action, is the improvement on a reference, from -1 to 1: ``(reference - value) /
max(reference, value)``, which is the relative improvement where there is one, and -1 where nothing is feasible.

An action that is masked changes nothing and costs ``1 / n``; n of them truncate the episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.placements.features import DEVICE_FEATURES, NODE_FEATURES, PAIR_FEATURES, observe
from rlinit.agent.stages.features import featurise
from rlinit.arrays import BoolArray, FloatArray, IntArray, inverse_of
from rlinit.env.problem_sources import Limits, limits_of
from rlinit.env.steps import EpisodeArrays, EpisodeState, complete, finish_times
from rlinit.errors import RlinitError
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.placements.arrays import kernel_arrays, upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from rlinit.stages.slicing import slice_order

P = TypeVar("P", StageProblem, PlacementProblem)
Observation = dict[str, NDArray[Any]]

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


class Episode(ABC, Generic[P]):
    """A partial schedule of a problem within limits; `load` begins with a problem.

    Parameters
    ----------
    limits
        The largest problem.

    Attributes
    ----------
    ready
        (N,) bool: nodes that may be taken.
    order
        Nodes in the order they were taken.
    invalid
        Whether the last action was a masked one.
    running
        Whether there is a schedule that is not finished.
    reference, value
        What the reference's rule reaches; the value of the finished schedule, NaN until then.
    """

    widths: ClassVar[dict[str, int]]
    """Columns of `nodes`, `devices` and `pairs` in observations."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.order: list[int] = []
        self.running = self.invalid = False
        self.reference, self.value, self._mistakes = 0.0, np.nan, 0
        self._problem: P | None = None

    @property
    def problem(self) -> P:
        """The problem that is played.

        Raises
        ------
        RlinitError
            None was loaded.
        """
        if self._problem is None:
            raise RlinitError("the environment was not reset yet; call reset() first")
        return self._problem

    def load(self, problem: P) -> None:
        """Begin an episode of a problem within the limits.

        Raises
        ------
        RlinitError
            The problem is larger than the limits.
        """
        size, most = limits_of(problem), self.limits
        for what in ("nodes", "edges", "devices"):
            if getattr(size, what) > getattr(most, what):
                raise RlinitError(f"a problem has {getattr(size, what)} {what}; the environment shows {most}")
        n, reads = size.nodes, np.diff(problem.succ_indptr)
        self._problem, self.running, self.invalid = problem, True, False
        self.order, self._mistakes, self.value = [], 0, np.nan
        self._waiting = np.diff(problem.pred_indptr)
        self.ready = np.zeros(most.nodes, np.bool_)
        self.ready[:n] = self._waiting == 0
        self._edges = np.full((most.edges, 2), -1, np.int64)
        self._edges[: size.edges] = np.stack([np.repeat(np.arange(n), reads), problem.succ], axis=1)
        features = self._features(problem)
        self._nodes = np.zeros((most.nodes, self.widths["nodes"]), np.float32)
        self._nodes[:n, :-_DYNAMIC] = np.clip(features.node, -MOST, MOST)
        self._begin(problem, features)

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Act once; return the reward, whether the schedule is finished (or cannot be), and whether it was cut off.

        Parameters
        ----------
        action
            From 0 to the number of actions - 1.
        """
        problem = self.problem
        n = limits_of(problem).nodes
        self.invalid = not self.mask()[action]
        if self.invalid:
            self._mistakes += 1
            self.running = self._mistakes < n
            return -1.0 / n, False, not self.running
        node = self._act(action)
        self.order.append(node)
        self.ready[node] = False
        for reader in problem.succ[problem.succ_indptr[node] : problem.succ_indptr[node + 1]]:
            self._waiting[reader] -= 1
            self.ready[reader] = self._waiting[reader] == 0
        self._after()
        if len(self.order) < n and self.mask().any():
            return 0.0, False, False
        self.running, self.value = False, self._finished()
        return improvement(self.value, self.reference), True, False

    def observe(self) -> Observation:
        """Return fresh padded arrays."""
        nodes = self._nodes.copy()
        nodes[:, -3] = self.ready
        nodes[self.order, -2] = 1.0
        nodes[self.order, -1] = np.arange(1.0, len(self.order) + 1.0) / limits_of(self.problem).nodes
        return {"nodes": nodes, "edges": self._edges.copy(), "action_mask": self.mask().astype(np.int8)}

    @abstractmethod
    def mask(self) -> BoolArray:
        """Return (A,) bool: which actions are allowed."""

    @abstractmethod
    def _features(self, problem: P) -> GraphFeatures:
        """Return what the agent sees of a problem."""

    @abstractmethod
    def _begin(self, problem: P, features: GraphFeatures) -> None:
        """Set up what is not common to all kinds of problems, and the reference."""

    @abstractmethod
    def _act(self, action: int) -> int:
        """Carry out an allowed action and return the node it takes."""

    @abstractmethod
    def _after(self) -> None:
        """Bring up to date what depends on which nodes are ready."""

    @abstractmethod
    def _finished(self) -> float:
        """Return the value of the finished schedule; inf where it cannot be finished."""


MOST = 1e9
"""Observed numbers are cut off here."""


class StageEpisode(Episode[StageProblem]):
    """An order in the making. An action is a ready node; the order is sliced optimally into stages.

    The reference is the natural order, sliced. The value is the first entry of the problem's value: bottleneck or peak.
    """

    widths: ClassVar[dict[str, int]] = {"nodes": NUM_STAGE_FEATURES + _DYNAMIC}

    def observe(self) -> Observation:
        """Return fresh padded arrays."""
        return {**super().observe(), "num_stages": np.array([self.problem.num_stages], np.float32)}

    def mask(self) -> BoolArray:
        """Return (N,) bool: the ready nodes."""
        return self.ready

    def _features(self, problem: StageProblem) -> GraphFeatures:
        return featurise(StageBatch.of_problem(problem))[0]

    def _begin(self, problem: StageProblem, features: GraphFeatures) -> None:
        self.reference = _sliced(problem, problem.order)

    def _act(self, action: int) -> int:
        return action

    def _after(self) -> None:
        pass

    def _finished(self) -> float:
        return _sliced(self.problem, np.array(self.order))


def _sliced(problem: StageProblem, order: IntArray) -> float:
    """Return the first entry of the value of an order's best slicing; inf where it has none."""
    found = slice_order(problem, order)
    return np.inf if found is None else found[1][0]


class PlacementEpisode(Episode[PlacementProblem]):
    """A placement in the making. An action is ``op * D + device``: the op is appended to the device.

    The reference places ops by descending upward rank, each where it ends first. An episode is over, with the worst
    reward, when a ready op fits on no device any more.
    """

    widths: ClassVar[dict[str, int]] = {
        "nodes": NODE_FEATURES + _DYNAMIC,
        "devices": DEVICE_FEATURES,
        "pairs": PAIR_FEATURES,
    }

    def observe(self) -> Observation:
        """Return fresh padded arrays."""
        scale = self.reference if np.isfinite(self.reference) and self.reference > 0 else 1.0
        finish = np.where(np.isfinite(self._finish_s) & self.ready[:, None], self._finish_s / scale, 0.0)
        shown = {name: array.copy() for name, array in self._shown.items()}
        return {**super().observe(), **shown, "finish": np.minimum(finish, MOST).astype(np.float32)}

    def mask(self) -> BoolArray:
        """Return (N * D,) bool: ready ops on devices that take them; all False where a ready op fits nowhere."""
        able = np.isfinite(self._finish_s) & self.ready[:, None]
        if not able[self.ready].any(axis=1).all():
            able[:] = False
        return np.asarray(able.ravel())

    def placement(self) -> Placement:
        """Return the finished placement."""
        return self._placed(self._state.device, np.array(self.order))

    def _placed(self, device: IntArray, order: IntArray) -> Placement:
        """Return ops placed on devices (n,), run in an order (n,)."""
        return Placement(device[:, None].copy(), order * self.problem.num_devices + device[order])

    def _features(self, problem: PlacementProblem) -> GraphFeatures:
        return observe(problem).features

    def _begin(self, problem: PlacementProblem, features: GraphFeatures) -> None:
        a, n, d = kernel_arrays(problem), problem.num_ops, problem.num_devices
        self._arrays = EpisodeArrays(
            np.ascontiguousarray(a.time[:, :, 1]),
            np.ascontiguousarray(a.allowed[:, :, 1][a.group]),
            (a.held_weight + a.held_shard)[a.group],
            a.tensor,
            a.s_per_byte,
            a.delay,
            a.pred_indptr,
            a.pred,
            a.group,
        )
        sequence = np.lexsort((inverse_of(problem.order), -upward_ranks(problem)))
        by_rule, self._state = (_nothing_placed(n, a.capacity) for _ in range(2))
        self.reference = float(complete(self._arrays, by_rule, sequence))
        if problem.transfers != "parallel" and np.isfinite(self.reference):
            self.reference = makespan(problem, self._placed(by_rule.device, sequence))
        most = self.limits
        self._finish_s = np.full((most.nodes, most.devices), np.inf)
        self._shown = {
            "devices": np.zeros((most.devices, DEVICE_FEATURES), np.float32),
            "pairs": np.zeros((most.nodes, most.devices, PAIR_FEATURES), np.float32),
        }
        self._shown["devices"][:d] = np.clip(features.device, -MOST, MOST)
        self._shown["pairs"][:n, :d] = np.clip(features.pair, -MOST, MOST).reshape(n, d, -1)
        self._after()

    def _act(self, action: int) -> int:
        v, i = divmod(action, self.limits.devices)
        state, arrays = self._state, self._arrays
        if state.group_device[arrays.group[v]] < 0:
            state.room[i] -= arrays.need_bytes[v]
            state.group_device[arrays.group[v]] = i
        state.end[v] = state.free[i] = self._finish_s[v, i]
        state.device[v] = i
        return v

    def _after(self) -> None:
        for v in np.flatnonzero(self.ready).tolist():
            finish_times(self._arrays, self._state, v, self._finish_s[v, : self.problem.num_devices])

    def _finished(self) -> float:
        return makespan(self.problem, self.placement()) if len(self.order) == self.problem.num_ops else np.inf


def _nothing_placed(n: int, capacity: FloatArray) -> EpisodeState:
    """Return the state before any of n ops is placed on devices of some capacity in bytes, (d,)."""
    nowhere = np.full(n, -1, np.int64)
    return EpisodeState(nowhere, nowhere.copy(), np.zeros(n), np.zeros(len(capacity)), capacity.copy())
