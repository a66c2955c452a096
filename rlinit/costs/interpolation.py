"""Seconds between shapes that were measured: kriging of the factor over a simple law, in logarithms of the sizes.

A law says how seconds grow with the work: a floor, operations over a rate and bytes over a bandwidth. What is measured
is a factor of some tenths around it that changes slowly with every size, so that the logarithm of the factor is what is
interpolated. Kernels and their tiles change from shape to shape, by jumps that no polynomial follows; ordinary kriging
with an exponential covariance has kinks at the points, and a nugget for noise. How much each size matters is chosen by
leaving measured points out.

References
----------
Cressie: Statistics for Spatial Data, 1993, section 3.2 (ordinary kriging).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray

FEWEST = 4
"""Measured ops or shapes of a kind from which figures are made, of which three are fitted."""

_NEIGHBOURS = 16
"""Measured shapes that a prediction rests on; 32 are no better and take four times as long."""

_RANGE, _NUGGET = 4.0, 0.03
"""Octaves over which the covariance falls to 1/e, and the share of the variance that is noise."""

_TRIED = 400
"""Points that are left out, one at a time, to choose stretches and to say how large errors are."""


class Predicted(NamedTuple):
    """Predictions (q,).

    Parameters
    ----------
    seconds
        The prediction.
    octaves
        How far the nearest measured shape is: the largest ratio of sizes, as a logarithm to base 2; 0: measured.
    """

    seconds: FloatArray
    octaves: FloatArray


class Interpolation:
    """Predict seconds from points.

    Parameters
    ----------
    sizes
        (p, a) logarithms to base 2 of the sizes of p different shapes.
    seconds, law
        (p,) measured, and by the law; above 0.
    hints
        (p, h) further coordinates that tell shapes apart, such as how full the last tile is; no distances.
    """

    __slots__ = ("_axes", "_factor", "_hints", "_sizes", "_tree", "spread")

    def __init__(
        self, sizes: FloatArray, seconds: FloatArray, law: FloatArray, hints: FloatArray | None = None
    ) -> None:
        self._sizes = np.asarray(sizes, np.float64)
        self._hints = np.zeros((len(sizes), 0)) if hints is None else np.asarray(hints, np.float64)
        self._factor = np.log(seconds / law)
        self._axes = np.ones(self._sizes.shape[1])
        self._index()
        tried = np.random.default_rng(0).permutation(len(sizes))[:_TRIED]
        errors = self._left_out(tried)
        for axis in range(len(self._axes)) if len(sizes) > _NEIGHBOURS else ():
            for power in (-1, 1):  # halved, then doubled
                kept = self._axes.copy()
                self._axes[axis] *= 2.0**power
                self._index()
                found = self._left_out(tried)
                if np.abs(found).mean() < np.abs(errors).mean():
                    errors = found
                else:
                    self._axes = kept
        self._index()
        self.spread: tuple[float, float] = (
            float(np.expm1(np.quantile(errors, 0.1))),
            float(np.expm1(np.quantile(errors, 0.9))),
        )
        """Relative errors at points left out: 80% of them lie between."""

    def _index(self) -> None:
        from scipy.spatial import KDTree

        self._tree = KDTree(self._points(self._sizes, self._hints))

    def _points(self, sizes: FloatArray, hints: FloatArray) -> FloatArray:
        return np.ascontiguousarray(np.hstack([sizes * self._axes, hints]))

    def predict(self, sizes: FloatArray, law: FloatArray, hints: FloatArray | None = None) -> Predicted:
        """Return predictions; beyond the measured shapes the law grows on with the factor of the nearest ones.

        Parameters
        ----------
        sizes
            (q, a) logarithms to base 2.
        law
            (q,) seconds by the law.
        hints
            (q, h) as for the points.
        """
        queries = self._points(sizes, np.zeros((len(sizes), 0)) if hints is None else hints)
        count = min(_NEIGHBOURS, len(self._factor))
        found = self._tree.query(queries, k=count)
        distance, near = (np.asarray(one).reshape(-1, count) for one in found)
        factor = self._krige(distance, near)
        met = distance[:, 0] == 0.0
        factor[met] = self._factor[near[met, 0]]
        octaves = np.abs(self._sizes[near[:, 0]] - sizes).max(axis=1, initial=0.0)
        return Predicted(law * np.exp(factor), octaves)

    def _krige(self, distance: FloatArray, near: IntArray) -> FloatArray:
        """Return (q,) factors from the (q, k) nearest points, by ordinary kriging."""
        points, value = self._tree.data[near], self._factor[near]
        apart = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(-1))
        covariance = np.exp(-apart / _RANGE) + _NUGGET * np.eye(near.shape[1])
        towards = np.exp(-distance / _RANGE)
        ones = np.ones_like(value)
        weights = np.linalg.solve(covariance, np.stack([ones, value], axis=2))
        mean = (weights[..., 0] * value).sum(1) / weights[..., 0].sum(1)
        return np.asarray(mean + (towards * (weights[..., 1] - mean[:, None] * weights[..., 0])).sum(1))

    def _left_out(self, tried: IntArray) -> FloatArray:
        """Return the errors (logarithms of predicted over measured) at points that are left out."""
        if len(self._factor) < 3:
            return np.zeros(1)
        count = min(_NEIGHBOURS + 1, len(self._factor))
        distance, near = (np.asarray(one) for one in self._tree.query(self._tree.data[tried], k=count))
        own = near == tried[:, None]
        own[~own.any(axis=1), -1] = True
        keep = ~own
        shape = (len(tried), count - 1)
        return self._krige(distance[keep].reshape(shape), near[keep].reshape(shape)) - self._factor[tried]
