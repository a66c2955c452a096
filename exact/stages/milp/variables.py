"""The "completed by" variables shared by the stage formulations, and the tensors that they cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.solvers.linear_model import Affine, LinearModel
from rlinit.stages.problem import StageProblem


class StageVariables:
    """Binaries ``y[v, b]``: node v is in stage b or an earlier one. Stages that a domain rules out are constants.

    Parameters
    ----------
    problem
        Nodes and tensors; its stages are not looked at.
    linear
        The model to write into.
    first, last
        (n,) interval of stages of each node, monotone along the edges and not empty.
    num_stages
        Number of stages of the model.
    edges
        (tails, heads) precedence between nodes, direct or implied.
    """

    def __init__(
        self,
        problem: StageProblem,
        linear: LinearModel,
        first: IntArray,
        last: IntArray,
        num_stages: int,
        edges: tuple[IntArray, IntArray],
    ) -> None:
        self.problem = problem
        self.linear = linear
        self.first, self.last = first, last
        self.num_stages = num_stages
        self.y: dict[tuple[int, int], int] = {}
        self._monotone_nodes()
        self._precedence(edges)

    def _monotone_nodes(self) -> None:
        """y[v, b-1] <= y[v, b]: what is completed by b-1 is completed by b (MTPP, Figure 3, before equation 11)."""
        for v in range(self.problem.num_nodes):
            for b in range(int(self.first[v]), int(self.last[v])):
                self.y[v, b] = self.linear.binary()
                if b > self.first[v]:
                    self.linear.at_most(Affine({self.y[v, b - 1]: 1.0, self.y[v, b]: -1.0}), 0.0)

    def _precedence(self, edges: tuple[IntArray, IntArray]) -> None:
        """y[v, b] <= y[u, b] on edges (u, v) (MTPP equation 8, Inc-ILP equation 3).

        Where one side is a constant the row is already in the other's domain: a window keeps it valid so.
        """
        for u, v in zip(edges[0].tolist(), edges[1].tolist(), strict=True):
            for b in range(int(max(self.first[u], self.first[v])), int(min(self.last[u], self.last[v]))):
                self.linear.at_most(Affine({self.y[v, b]: 1.0, self.y[u, b]: -1.0}), 0.0)

    def completed(self, v: int, b: int) -> Affine:
        """Return y[v, b] as a variable or the constant that the domain makes it.

        Parameters
        ----------
        v
            Node.
        b
            Stage; before the first one nothing is completed.
        """
        if b < self.first[v]:
            return Affine()
        if b >= self.last[v]:
            return Affine(constant=1.0)
        return Affine({self.y[v, b]: 1.0})

    def at(self, v: int, b: int) -> Affine:
        """Return x[v, b] = y[v, b] - y[v, b-1], 1 iff v is in stage b (MTPP equation 11).

        Parameters
        ----------
        v
            Node.
        b
            Stage.
        """
        if not self.first[v] <= b <= self.last[v]:
            return Affine()
        return self.completed(v, b).minus(self.completed(v, b - 1))

    def held(self, weight: FloatArray, b: int) -> Affine:
        """Return the sum of weight[v] x[v, b] (Inc-ILP equation 4).

        Parameters
        ----------
        weight
            (n,) of nodes.
        b
            Stage.
        """
        total = Affine()
        for v in np.flatnonzero((weight != 0) & (self.first <= b) & (b <= self.last)).tolist():
            total.add(self.at(v, b), float(weight[v]))
        return total

    def fixed(self, v: int) -> bool:
        """Whether only one stage is left to v."""
        return bool(self.first[v] == self.last[v])

    def _consumers(self, t: int) -> list[int]:
        indptr = self.problem.tensor_indptr
        return [int(v) for v in self.problem.tensor_dst[indptr[t] : indptr[t + 1]]]

    def entering(self, t: int, b: int, share: Callable[[int, int], Affine] | None = None) -> Affine:
        """in[t, b] >= x[v, b] - x[u, b] for each consumer v of the tensor t of u.

        MTPP's equation 9 reads c[u, b] >= y[u, b-1] + x[v, b] - 1. By precedence a consumer in b has its producer in
        b or earlier, so x[v, b] = 1 and x[u, b] = 0 already mean that the tensor comes in; the row is
        stronger by 1 - y[u, b]. One variable a tensor counts it once however many consumers the stage has.
        `share` replaces x where stages have classes.

        Parameters
        ----------
        t
            Tensor.
        b
            Stage.
        share
            (node, stage) -> expression.
        """
        u = int(self.problem.tensor_src[t])
        if self.first[u] >= b:
            return Affine()
        consumers = [v for v in self._consumers(t) if self.first[v] <= b <= self.last[v]]
        here = [v for v in consumers if self.fixed(v)]
        x = share or self.at
        made_here = x(u, b)
        needs = [x(v, b).minus(made_here) for v in (here[:1] or consumers)]
        # A single difference needs no variable where it cannot be negative: the consumer is fixed to b, the
        # producer is surely earlier, or b is the last stage (where it is y[u, b-1] - y[v, b-1]).
        is_last = b == self.num_stages - 1 and share is None
        return self._largest(needs, never_negative=bool(here) or bool(self.last[u] < b) or is_last)

    def leaving(self, t: int, b: int, share: Callable[[int, int], Affine] | None = None) -> Affine:
        """out[t, b] >= x[u, b] - x[v, b] for each consumer v of the tensor t of u.

        MTPP's equation 10 reads c[u, b] >= x[u, b] - y[v, b]. By precedence a consumer of a tensor made in b is in b
        or later, so x[v, b] = 0 already means later; the row is stronger by y[v, b-1]. It is also what Inc-ILP's
        alpha (equations 6 and 7) must be at least, counted once a tensor.

        Parameters
        ----------
        t
            Tensor.
        b
            Stage.
        share
            As for `entering`: replaces x where stages have classes.
        """
        u = int(self.problem.tensor_src[t])
        if not self.first[u] <= b <= self.last[u]:
            return Affine()
        consumers = [v for v in self._consumers(t) if self.last[v] > b]
        if not consumers:
            return Affine()
        x = share or self.at
        made_here = x(u, b)
        if any(self.first[v] > b for v in consumers):
            return made_here
        leaves = [made_here.minus(x(v, b)) for v in consumers]
        is_first = b == 0 and share is None
        return self._largest(leaves, never_negative=self.fixed(u) or is_first)

    def _largest(self, expressions: Iterable[Affine], *, never_negative: bool) -> Affine:
        """Return max(0, expressions): the expression itself where that is safe, else a new variable."""
        parts = list(expressions)
        if not parts:
            return Affine()
        if len(parts) == 1 and never_negative:
            return parts[0]
        return Affine({self.linear.max_of(0.0, 1.0, parts): 1.0})

    def encode(self, stage: IntArray, point: FloatArray) -> None:
        """Write the stages ((n,), inside the domains) into `point`.

        Parameters
        ----------
        stage
            (n,) stage of each node.
        point
            (number of variables,) is filled in place.
        """
        for (v, b), handle in self.y.items():
            point[handle] = stage[v] <= b

    def decode(self, point: FloatArray) -> IntArray:
        """Return the stage of each node, (n,), at a point that satisfies the model up to a tolerance."""
        stage = self.last.copy()
        for (v, _), handle in self.y.items():
            stage[v] -= point[handle] > 0.5
        return stage
