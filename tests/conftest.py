"""How tests run: hypothesis draws the same examples in every run, and parts of a search that fail raise.

Slow properties take their numbers from `tests.draws`: a quarter by default, all of them and new ones with
`--hypothesis-profile explore`, ten times as many with `--hypothesis-profile many`, as in ``make fuzz``.
"""

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("RLINIT_STRICT", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("explore", deadline=None)
settings.register_profile("many", deadline=None, max_examples=400)
settings.register_profile("few", derandomize=True, deadline=None, max_examples=5)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Refuse tests that load PyTorch when they are collected: it takes longer than all else there."""
    if "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch; import it in `with late_imports():` of tests/late.py")
