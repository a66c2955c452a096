"""How tests run: hypothesis draws the same examples in every run, and parts of a search that fail raise.

Slow properties take their numbers from `tests.draws`: a fifth by default, all of them and new ones with
`--hypothesis-profile explore`, ten times as many with `--hypothesis-profile many`, as in ``make fuzz``.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("RLINIT_STRICT", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("explore", deadline=None)
settings.register_profile("many", deadline=None, max_examples=400)
settings.register_profile("few", derandomize=True, deadline=None, max_examples=5)
settings.load_profile("repeatable")


FIRST = [
    "cli/test_warm_up.py",  # compiles all kernels, while the other worker runs files that need few of them
    "executors/test_throughput.py",
    "executors/test_pipeline.py",
    "importers/onnx/test_agreement.py",
    "executors/test_groups.py",
    "executors/test_training.py",
    "test_docs.py",
    "integration/test_model_files.py",
    "integration/test_first_use.py",
    "train/test_loop.py",
    "exporters/test_torchrun.py",
    "exporters/test_split_spec.py",
    "importers/torch/test_pt2_file.py",
    "integration/test_growth.py",
]
"""Files of few and slow tests, which workers begin with, so that none of them has one left when the others are done."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files: pytest-xdist would begin with those of many tests, quick or slow.

    A file of `FIRST` that was renamed is an error.
    """
    config.option.loadscopereorder = False
    if gone := [name for name in FIRST if not (Path(__file__).parent / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py begins with files that are gone: {', '.join(gone)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On several workers, put the files of `FIRST` first, and the others by their number of tests."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: at for at, name in enumerate(FIRST)}
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (places.get(item.path, len(FIRST)), -counts[item.path]))


def pytest_collection_finish() -> None:
    """Refuse tests that load PyTorch when they are collected: it takes longer than all else there."""
    if "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch; import it in `with late_imports():` of tests/late.py")
