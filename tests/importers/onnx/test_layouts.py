"""Views of tensors by their strides, held against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.importers.onnx.layouts import contiguous, reshaped

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(deadline=None)
@given(shape=SHAPES, data=st.data())
def test_a_reshape_is_a_view_where_numpy_needs_no_copy(shape: list[int], data: st.DataObject) -> None:
    """Transposed, cut and reshaped again: strides are found if there are any, and give the elements in order."""
    whole = np.arange(np.prod([size + 1 for size in shape])).reshape([size + 1 for size in shape])
    cut = whole[tuple(slice(0, data.draw(st.sampled_from((size, size + 1)))) for size in shape)]
    seen = cut.transpose(data.draw(st.permutations(range(len(shape)))))
    target = data.draw(st.permutations(_factors(seen.size)))
    strides = tuple(stride // seen.itemsize for stride in seen.strides)
    found = reshaped(seen.shape, strides, tuple(target))
    is_view = np.shares_memory(seen.reshape(target), whole)
    assert (found is not None) == is_view
    if found is not None:
        again = np.lib.stride_tricks.as_strided(seen, target, [seen.itemsize * stride for stride in found])
        assert again.tolist() == seen.reshape(target).tolist()


def _factors(number: int) -> list[int]:
    """Return the prime factors of a number, and a one."""
    found = [1]
    for divisor in range(2, number + 1):
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
    return found


def test_sizes_that_do_not_fit_are_no_view() -> None:
    """Nor is there anything to look at in a tensor without elements."""
    assert reshaped((1,), (1,), (2,)) is None
    assert reshaped((2, 0), (0, 1), (0, 3)) == contiguous((0, 3))
    assert reshaped((3, 1, 4), (0, 0, 1), (3, 4)) == (0, 1)
