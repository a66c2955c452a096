"""How tests run: hypothesis draws the same examples in every run, and parts of a search that fail raise.

New examples come with `--hypothesis-profile explore`.
"""

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("RLINIT_STRICT", "1")

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.register_profile("few", derandomize=True, deadline=None, max_examples=5)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Refuse tests that load PyTorch when they are collected: it takes longer than all else there."""
    if "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch; import it in `with late_imports():` of tests/late.py")
