"""Where published instances are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinit.datasets.published import location
from rlinit.errors import RlinitError


def test_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's folder is taken; one that does not exist is an error, not ignored."""
    monkeypatch.setenv("RLINIT_INSTANCES", str(tmp_path))
    assert location.instances_root() == tmp_path
    monkeypatch.setenv("RLINIT_INSTANCES", str(tmp_path / "none"))
    with pytest.raises(RlinitError, match="none"):
        location.instances_root()


def test_beside_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, shared/instances beside the repository is taken where there is one."""
    monkeypatch.delenv("RLINIT_INSTANCES", raising=False)
    monkeypatch.setattr(location, "__file__", str(tmp_path / "repository" / "datasets" / "published" / "location.py"))
    assert location.instances_root() is None
    (tmp_path / "shared" / "instances").mkdir(parents=True)
    assert location.instances_root() == tmp_path / "shared" / "instances"
