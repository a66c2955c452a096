"""Linear layers that multiply whole numbers: the same sums in any order, whatever library adds them up.

Weights are rounded to `_BITS` bits and a sign, and inputs to as many steps as keep every sum of products below 2^24, up
to where float32 counts exactly. So products are the same on every machine, and take half the time of float64. What is
between them is compiled, one pass over the rows each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import Floats
from rlinit.kernels.compiled import njit

_NORM_EPSILON = 1e-5
"""Added to variances, as torch's layer norm does by default."""

_BITS = 7
"""Of a weight, beside its sign."""

_EXACT = 2.0 / float(np.finfo(np.float32).eps)
"""Whole numbers up to this, and their sums, are exact in float32."""

_LEAST_STEP = np.finfo(np.float32).tiny
"""Of inputs that are all zero, or nearly."""


class IntegerLayer(NamedTuple):
    """A linear layer in whole numbers.

    `weight` (in, out) float32 holds whole numbers, `step` (out,) what one of them is worth, `bias` is (out,); inputs
    are whole numbers up to `most`.
    """

    weight: Floats
    step: Floats
    bias: Floats
    most: np.float32

    @classmethod
    def rounded(cls, weight: Floats, bias: Floats | None) -> IntegerLayer:
        """Return a layer with its weights rounded.

        Parameters
        ----------
        weight, bias
            (out, in), and (out,), which is kept; None: zeros.
        """
        top = np.abs(weight).max(axis=1)
        step = np.where(top > 0, top, np.float32(1)) / np.float32(2**_BITS - 1)
        whole = np.rint(weight / step[:, None])
        most = np.floor(_EXACT / max(1.0, float(np.abs(whole).sum(axis=1).max())))
        bias = np.zeros(len(weight), np.float32) if bias is None else bias
        return cls(np.ascontiguousarray(whole.T), step, bias, np.float32(most))

    def whole(self, x: Floats, top: float | None = None) -> tuple[Floats, np.float32]:
        """Turn inputs x (n, in) into whole numbers; return these and what one is worth, both float32.

        Parameters
        ----------
        x
            (n, in) float32 inputs, changed in place.
        top
            The largest size of an input; None: it is looked up.
        """
        step = self._step(largest_size(x) if top is None else top)
        _round(x, 1 / step)
        return x, step

    def finish(
        self, sums: Floats, step: np.float32, more: Floats | None = None, least: float = -np.inf
    ) -> tuple[Floats, float]:
        """Turn sums of whole products (n, out) into the layer's numbers; return these and the largest size of one.

        Parameters
        ----------
        sums
            (n, out) float32, changed in place.
        step
            What one of the whole inputs is worth.
        more
            (n, out), or (1, out) for all rows, float32, which is added; None: nothing.
        least
            Smaller numbers become this.
        """
        more = np.zeros((1, sums.shape[1]), np.float32) if more is None else more
        return sums, _finish(sums, self.step * step, self.bias, more, np.float32(least))

    def product(
        self,
        whole: Floats,
        step: np.float32,
        more: Floats | None = None,
        least: float = -np.inf,
        out: Floats | None = None,
    ) -> tuple[Floats, float]:
        """Return what the layer makes of whole inputs, (n, out), and the largest size of one of its numbers.

        Parameters
        ----------
        whole, step, more, least
            (n, in) whole inputs; see `whole` and `finish`.
        out
            (n, out) float32, where the result is written; None: a new array.
        """
        return self.finish(np.matmul(whole, self.weight, out=out), step, more, least)

    def few(self, x: Floats, top: float) -> Floats:
        """Return what the layer makes of x (n, in), (n, out) float32; for layers of one or two outputs.

        Parameters
        ----------
        x
            (n, in) float32 inputs.
        top
            The largest size of an input.
        """
        y = np.empty((len(x), len(self.bias)), np.float32)
        step = self._step(top)
        _few_outputs(x, 1 / step, np.ascontiguousarray(self.weight.T), self.step * step, self.bias, y)
        return y

    def _step(self, top: float) -> np.float32:
        return max(np.float32(top) / self.most, _LEAST_STEP)

    def __call__(self, x: Floats) -> Floats:
        """Return what the layer makes of x (n, in), (n, out) float32."""
        return self.product(*self.whole(x.astype(np.float32)))[0]


@njit(cache=True, nogil=True)
def largest_size(x: Floats) -> float:
    """Return the largest size of a number of x (n, h), 0 without any; channel by channel, so that it is vectorised."""
    n, width = x.shape
    top = np.zeros(width, x.dtype)
    for v in range(n):
        for c in range(width):
            top[c] = max(top[c], abs(x[v, c]))
    return float(top.max()) if width else 0.0


@njit(cache=True, nogil=True)
def _round(x: Floats, share: np.float32) -> None:
    """Multiply x (n, h) by `share` and round; with a second array that might be x, this would not be vectorised."""
    n, width = x.shape
    for v in range(n):
        for c in range(width):
            x[v, c] = np.rint(x[v, c] * share)


@njit(cache=True, nogil=True)
def _finish(y: Floats, step: Floats, bias: Floats, more: Floats, least: np.float32) -> float:
    """Turn sums y (n, h) of whole products into numbers; return the largest size of one. See `IntegerLayer.product`."""
    n, width = y.shape
    top, stride = np.zeros(width, y.dtype), min(1, len(more) - 1)
    for v in range(n):
        for c in range(width):
            value = max((y[v, c] * step[c] + bias[c]) + more[v * stride, c], least)
            y[v, c] = value
            top[c] = max(top[c], abs(value))
    return float(top.max())


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _moments(x: Floats, v: int) -> tuple[float, float]:
    """Return the sums of row v of x (n, h) and of its squares, in any order: rounded, they are the same."""
    total, square = 0.0, 0.0
    for c in range(x.shape[1]):
        total, square = total + np.float64(x[v, c]), square + np.float64(x[v, c]) ** 2
    return total, square


@njit(cache=True, nogil=True)
def layer_norm(x: Floats, weight: Floats, bias: Floats, y: Floats) -> float:
    """Write the LayerNorm of the rows of x (n, h) to y; return the largest size of one of its numbers.

    Parameters
    ----------
    x
        (n, h) inputs.
    weight, bias
        (h,) of the layer.
    y
        (n, h), to be filled.
    """
    n, width = x.shape
    top = np.zeros(width, np.float32)
    for v in range(n):
        total, square = _moments(x, v)
        mean = total / width
        variance = max(0.0, square / width - mean * mean)
        less, share = np.float32(mean), np.float32(1.0 / np.sqrt(variance + _NORM_EPSILON))
        for c in range(width):
            value = (x[v, c] - less) * share * weight[c] + bias[c]
            y[v, c] = value
            top[c] = max(top[c], abs(value))
    return float(top.max())


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _few_outputs(x: Floats, share: np.float32, weight: Floats, step: Floats, bias: Floats, y: Floats) -> None:
    """Write to y (n, out) what a layer makes of x (n, in); `weight` is (out, in). Sums are exact in any order."""
    n, width = x.shape
    for v in range(n):
        for k in range(len(weight)):
            total = np.float32(0.0)
            for c in range(width):
                total += np.rint(x[v, c] * share) * weight[k, c]
            y[v, k] = total * step[k] + bias[k]


@njit(cache=True, nogil=True)
def add_ends(x: Floats, step: Floats, node: Floats, device: Floats) -> float:
    """Multiply rows of x (n * d, h) by `step`, add those of their nodes and devices, and cut off below 0.

    Parameters
    ----------
    x
        Pairs of node and device, node by node; changed in place.
    step
        (h,) what x is worth.
    node, device
        (n, h) and (d, h), which are added.

    Returns
    -------
    float
        The largest number of x.
    """
    d, width = device.shape
    top, zero = np.zeros(width, x.dtype), np.float32(0.0)
    for v in range(len(node)):
        for i in range(d):
            for c in range(width):
                value = max((x[v * d + i, c] * step[c] + node[v, c]) + device[i, c], zero)
                x[v * d + i, c] = value
                top[c] = max(top[c], value)
    return float(top.max())
