"""Reading saved programs with their weights: equal to torch's own reader, and nothing executed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinit.errors import InvalidGraph
from rlinit.importers.torch.pt2_weights import load_model
from tests.draws import draws
from tests.late import late_imports

with late_imports():
    import torch

    from tests.importers.torch.models import Mixed


pytestmark = pytest.mark.filterwarnings("ignore:No complete tensor")
"""torch says so of every tensor that is a view when it saves it."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a saved program."""
    path = tmp_path_factory.mktemp("weights") / "net.pt2"
    torch.export.save(torch.export.export(Mixed().eval(), (torch.randn(2, 3),)), path)
    return path


def test_it_computes_what_torchs_own_reader_computes(saved: Path) -> None:
    """Outputs are equal bit for bit, and shared weights stay shared."""
    mine, true = load_model(saved), torch.export.load(saved)
    x = torch.randn(2, 3)
    assert torch.equal(mine.module()(x), true.module()(x))
    weights = [mine.state_dict[f"{name}.weight"] for name in ("first", "second")]
    assert weights[0].untyped_storage().data_ptr() == weights[1].untyped_storage().data_ptr()
    for name, value in true.state_dict.items():
        assert mine.state_dict[name].stride() == value.stride()


def rewritten(path: Path, target: Path, change: Callable[[dict[str, bytes]], None], *, method: int = 0) -> Path:
    """Return a copy of an archive whose members were changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


CONFIG = "net/data/weights/model_weights_config.json"


def edited(members: dict[str, bytes], name: str, key: str, value: Any) -> None:
    """Change one entry of the description of a weight."""
    data = json.loads(members[CONFIG])
    entry = data["config"][name]
    (entry if key in entry else entry["tensor_meta"])[key] = value
    members[CONFIG] = json.dumps(data).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: edited(m, "turned", "use_pickle", True), "'turned': it is pickled"),
        (lambda m: edited(m, "turned", "sizes", [{"as_int": 9}]), "program expects"),
        (lambda m: edited(m, "turned", "strides", [{"as_int": 1}, {"as_int": 10**9}]), "do not hold"),
        (lambda m: edited(m, "turned", "strides", [{"as_int": -1}, {"as_int": 1}]), "description"),
        (lambda m: edited(m, "turned", "storage_offset", {"as_int": 10**15}), "do not hold"),
        (lambda m: edited(m, "turned", "storage_offset", 7), "description"),
        (lambda m: edited(m, "turned", "path_name", "../../../etc/passwd"), "lacks"),
        (lambda m: m.pop("net/data/weights/weight_0"), "lacks"),
        (lambda m: m.pop(CONFIG), "0 times"),
        (lambda m: m.__setitem__(CONFIG, b"[1]"), "cannot make sense"),
        (lambda m: m.__setitem__(CONFIG, b'{"config": {}}'), "does not hold it"),
        (lambda m: m.__setitem__("net/byteorder", b"big"), "endian"),
        (lambda m: m.__setitem__("net/data/weights/weight_0", b"abc"), "no whole number"),
        (lambda m: m.__setitem__("net/data/weights/weight_0", b""), "do not hold"),
    ],
)
def test_what_does_not_fit_is_named(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    """Missing, pickled, misdescribed and misplaced weights are refused with their name."""
    path = rewritten(saved, tmp_path / "net.pt2", change)
    with pytest.raises(InvalidGraph, match=message):
        load_model(path)


def test_compressed_and_overlapping_members_are_refused(saved: Path, tmp_path: Path) -> None:
    """Members that would grow when they are read are not read."""
    packed = rewritten(saved, tmp_path / "packed.pt2", lambda members: None, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidGraph, match="compressed"):
        load_model(packed)


@given(at=st.integers(0, 2**31), data=st.binary(min_size=1, max_size=40))
@settings(max_examples=draws(25), deadline=None)
@example(at=239, data=b"\x00M")
@example(at=6, data=b"\x01")
def test_damaged_files_never_crash(saved: Path, tmp_path_factory: pytest.TempPathFactory, at: int, data: bytes) -> None:
    """Bytes written over a file give a program or an error of ours."""
    whole = saved.read_bytes()
    at %= len(whole)
    path = tmp_path_factory.getbasetemp() / "damaged.pt2"
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])
    try:
        load_model(path)
    except InvalidGraph:
        return


def test_pickles_are_never_opened(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torch.load nor pickle is called, whatever sample inputs the file holds."""
    import pickle

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr("torch.load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    assert load_model(saved).module()(torch.randn(2, 3)).shape == (2, 3)
