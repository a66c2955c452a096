"""Problems ahead of training: the same batches however they are made."""

from __future__ import annotations

import os
import signal

import pytest

from rlinit.errors import TrainingFailure
from rlinit.train.core.curriculum import Request
from tests.late import late_imports
from tests.train.tiny_task import TinyBatch, TinyParams, TinyTask

with late_imports():
    from rlinit.train.core.data_loading import batches


class Fragile(TinyTask):
    """Has no problems of size 13; those of size 99 kill the process."""

    def generate(self, seed: int, size: int, count: int) -> TinyBatch:
        if size == 13:
            raise ValueError("no problems of size 13")
        if size == 99:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(seed, size, count)


def test_workers_change_nothing() -> None:
    """With a worker and without, batches come in order; an error or death of a worker is raised where it belongs."""
    task, asked = Fragile(TinyParams()), [Request(size, size, 2) for size in range(3, 14)]
    here = list(batches(task, asked[:-1], 0, 2))
    assert [one for one, _ in here] == asked[:-1]
    made = batches(task, asked, 1, 4)
    for one, batch in here:
        found = next(made)
        assert found[0] == one
        assert (found[1].reference == batch.reference).all()
    with pytest.raises(ValueError, match="no problems of size 13"):
        next(made)
    with pytest.raises(TrainingFailure, match="could not be generated"):
        next(batches(task, [Request(0, 99, 1)], 1, 1))
