"""Saved programs: the graph of the live one, dynamic sizes, and files that are damaged or hostile."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rlinit import load_graph
from rlinit.errors import InvalidGraph
from rlinit.importers.torch import pt2_file
from rlinit.importers.torch.export import from_program
from rlinit.importers.torch.pt2_file import load_program
from tests.late import late_imports

with late_imports():
    import torch

    from tests.importers.torch.models import Net


@pytest.fixture(scope="module")
def program() -> Any:
    shapes = {"x": {0: torch.export.Dim("batch", max=1000)}}
    with torch.no_grad():
        return torch.export.export(Net().eval(), (torch.ones(3, 4),), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(program, path)
    return path


def edited(saved: Path, path: Path, edit: Any) -> Path:
    """Copy an archive with its program changed by `edit`, which gets the JSON text."""
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("models/model.json"):
                content = edit(content.decode()).encode()
            target.writestr(entry, content)
    return path


@pytest.mark.parametrize("granularity", ["op", "module"])
def test_a_saved_program_gives_the_graph_of_the_live_one(program: Any, saved: Path, granularity: Any) -> None:
    """Saving and reading change nothing, whatever batch size is chosen."""
    for batch in (None, 1, 17):
        live = from_program(program, granularity=granularity, batch=batch, name="net")
        assert from_program(load_program(saved), granularity=granularity, batch=batch, name="net") == live
    assert load_graph(saved) == from_program(program, name="net")
    assert load_graph(saved, batch=5).out_bytes[0] == 4 * 5 * 4


def test_a_graph_with_its_mapping_is_saved_as_json(saved: Path, tmp_path: Path) -> None:
    """What an importer notes of an op survives a graph file."""
    graph = load_graph(saved)
    graph.save(tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json") == graph
    assert load_graph(tmp_path / "g.json").extras[1]["nodes"] == ["linear"]


def test_weights_are_not_read(saved: Path) -> None:
    """Parameters of a program read from a file have shapes and no storage."""
    tensors = {**load_program(saved).state_dict, **load_program(saved).constants}
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}


def test_sizes_outside_the_range(saved: Path) -> None:
    """A batch size the program was not exported for is refused."""
    with pytest.raises(InvalidGraph, match="allows"):
        load_graph(saved, batch=1001)


class Bomb:
    """Unpickling it leaves a trace."""

    def __reduce__(self) -> Any:
        return (open, ("bomb-went-off", "w"))


def test_pickles_are_not_opened(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive whose weights and inputs are hostile pickles is read without opening them."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(tmp_path / "bomb.pt2", "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            bomb = entry.filename.endswith(".pt") or "/weight_" in entry.filename
            target.writestr(entry, pickle.dumps(Bomb()) if bomb else content)
    assert load_graph(tmp_path / "bomb.pt2").num_ops > 3
    assert not (tmp_path / "bomb-went-off").exists()


SYMBOL = "Symbol('s77', positive=True, integer=True)"


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch bomb-went-off')",
        "open('bomb-went-off', 'w')",
        "Symbol.__init__.__globals__",
        "Symbol('s77').func",
        "Pow(Integer(10), Integer(10000000000))",
        "10 ** 10 ** 10",
        "[1 for _ in ()]",
        "lambda: 1",
        "Symbol('os')",
        "(" * 5000,
        "Pow(Pow(Pow(Integer(60), Integer(60)), Integer(60)), Integer(60))",
        "Pow(Integer(2), Pow(Integer(2), Pow(Integer(2), Integer(60))))",
        "Pow(Integer(60), Mul(Integer(60), Integer(60), Integer(60), Integer(60), Integer(60)))",
        "Pow(Integer(2), Symbol('s77', positive=True, integer=True))",
        "LShift(Integer(1), Integer(10000000000))",
        "Mul(" + ", ".join(["Add(Symbol('s77'), Symbol('s1'), Symbol('s2'))"] * 30) + ")",
        "Pow(Add(Symbol('s77'), Symbol('s1'), Symbol('s2'), Symbol('s3')), Integer(60))",
        "Mul(" * 300 + "Integer(2)" + ", Integer(2))" * 300,
        "Add(" + "1," * 20000 + "1)",
    ],
)
def test_expressions_are_arithmetic(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    """A size expression that is more than arithmetic is refused and never evaluated."""
    monkeypatch.chdir(tmp_path)

    def edit(text: str) -> str:
        found = next(part for part in text.split('"expr_str": ')[1:])
        wanted = found[: found.index('"', 1) + 1]
        return text.replace(wanted, json.dumps(expression))

    with pytest.raises(InvalidGraph, match=r"size"):
        load_graph(edited(saved, tmp_path / "net.pt2", edit))
    assert not (tmp_path / "bomb-went-off").exists()


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ("torch.hub.load", "is not an operator"),
        ("torch.ops.load_library", "is not an operator"),
        ("torch.serialization.os.system", "is not an operator"),
        ("torch.ops.aten.__class__", "is not an operator"),
        ("torch.ops.nowhere.twice.default", "not registered"),
        ("torch.ops.aten.linear.nothing", "not registered"),
        ("os.system", "is not an operator"),
        ("#os.system", "is not an operator"),
    ],
)
def test_operators_are_operators(saved: Path, tmp_path: Path, operator: str, message: str) -> None:
    """A node that calls anything but a registered operator is refused, by name."""
    path = edited(saved, tmp_path / "net.pt2", lambda text: text.replace("torch.ops.aten.linear.default", operator))
    with pytest.raises(InvalidGraph, match=message):
        load_graph(path)


def test_sizes_that_are_scaled(tmp_path: Path) -> None:
    """Programs whose sizes are scaled by a fraction, divided and rounded are read as they are."""

    class Scaled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            large = torch.nn.functional.interpolate(x, scale_factor=1.5)
            return torch.nn.functional.avg_pool2d(large, 3, 2, 1).flatten(1)

    shapes = {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}}
    program = torch.export.export(Scaled(), (torch.ones(2, 3, 32, 36),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "scaled.pt2")
    graph = load_graph(tmp_path / "scaled.pt2", batch=4, dims={"x[2]": 10, "x[3]": 20})
    assert graph.out_bytes[-1] == 4 * 4 * 3 * 8 * 15


def test_guards_are_not_compiled(saved: Path) -> None:
    """Guard code in a file is dropped."""
    assert load_program(saved)._guards_code == []


def test_what_transformers_gives_is_known(tmp_path: Path) -> None:
    """A program that gives a class of transformers is read by a process that has not imported it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    model = transformers.ViTForImageClassification(config).eval()
    torch.export.save(torch.export.export(model, (torch.ones(1, 3, 8, 8),)), tmp_path / "vit.pt2")
    code = "import sys, rlinit; print(rlinit.load_graph(sys.argv[1]).num_ops, 'transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "vit.pt2")], capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[1:] == ["True"], done.stderr
    assert int(done.stdout.split()[0]) > 10


def test_structures_import_nothing_else(saved: Path, tmp_path: Path) -> None:
    """Enumerations and defaultdicts name modules, which are not imported, however they are spelled; nor are classes."""
    unknown = json.dumps({"type": "os.path.x", "context": None, "children_spec": []})
    enumeration = json.dumps({"__enum__": True, "fqn": "this:d", "name": "x"})
    factory = json.dumps({"default_factory_module": "this", "default_factory_name": "d", "dict_context": []})
    cases = [(unknown, "make sense")]
    for kind, context, message in (("dict", enumeration, "enum"), ("collections.defaultdict", factory, "defaultdict")):
        escaped = context.replace("_", "\\u005f")
        for written in (json.dumps(context), json.dumps(escaped), json.dumps(context).replace("_", "\\u005f")):
            cases.append((f'{{"type": "builtins.{kind}", "context": {written}, "children_spec": []}}', message))
            cases.append((f'{{"type": "{kind}", "context": {written}, "children_spec": []}}', message))
    for structure, message in cases:

        def edit(text: str, structure: str = structure) -> str:
            data = json.loads(text)
            call = data["graph_module"]["module_call_graph"][0]["signature"]
            call["out_spec"] = f"[1, {structure}]"
            return json.dumps(data)

        with pytest.raises(InvalidGraph, match=message):
            load_program(edited(saved, tmp_path / "edited.pt2", edit))
    assert "this" not in sys.modules


def test_not_an_archive(tmp_path: Path, saved: Path) -> None:
    """A missing file, junk, half an archive and an archive of something else are refused by name."""
    with pytest.raises(InvalidGraph, match=r"none\.pt2"):
        load_graph(tmp_path / "none.pt2")
    path = tmp_path / "bad.pt2"
    for content in (b"", b"junk", saved.read_bytes()[:-200], saved.read_bytes()[: saved.stat().st_size // 2]):
        path.write_bytes(content)
        with pytest.raises(InvalidGraph, match=r"bad\.pt2"):
            load_graph(path)
    torch.save(torch.ones(3), path)
    with pytest.raises(InvalidGraph, match="holds 0 programs"):
        load_graph(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"graph_module": {"graph": 3}}', "nul"])
def test_not_a_program(saved: Path, tmp_path: Path, text: str) -> None:
    """JSON that is no program is refused."""
    with pytest.raises(InvalidGraph, match=r"net\.pt2"):
        load_graph(edited(saved, tmp_path / "net.pt2", lambda _: text))


def test_a_bomb_is_not_unpacked(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program beyond the limit is refused before it is unpacked."""
    monkeypatch.setattr(pt2_file, "MAX_BYTES", 1000)
    with pytest.raises(InvalidGraph, match="bytes"):
        load_graph(saved)


def test_huge_dimensions(saved: Path, tmp_path: Path) -> None:
    """Sizes beyond what a tensor can have are refused without allocating."""
    path = edited(
        saved, tmp_path / "net.pt2", lambda text: text.replace('"as_int": 4}', '"as_int": 4611686018427387904}')
    )
    with pytest.raises(InvalidGraph, match=r"net\.pt2"):
        load_graph(path)


def test_mutated_programs_never_crash(saved: Path, tmp_path: Path) -> None:
    """Random edits of the program give a graph or an InvalidGraph, nothing else."""
    random_state = random.Random(0)

    def edit(text: str) -> str:
        for _ in range(random_state.randint(1, 4)):
            at = random_state.randrange(len(text))
            what = random_state.choice(["", "0", "-1", '"', "null", "{", text[at : at + 40], "99999999999"])
            text = text[:at] + what + text[at + random_state.randint(0, 6) :]
        return text

    refused = 0
    for _ in range(60):
        try:
            load_graph(edited(saved, tmp_path / "net.pt2", edit))
        except InvalidGraph:
            refused += 1
    assert refused > 10
