"""What all tests of training share."""

from __future__ import annotations

import pytest

from tests.late import late_imports

with late_imports():
    import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Run torch on one thread: results repeat bit by bit, and tests side by side do not wait for each other."""
    torch.set_num_threads(1)
