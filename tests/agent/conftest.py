"""Small networks are fastest on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.late import late_imports

with late_imports():
    import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Compute on one thread while the tests of this package run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
