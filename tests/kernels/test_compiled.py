"""Compiled code is filed under a hash of the sources it comes from."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlinit
from rlinit.kernels import compiled

CALLER = """\
from rlinit.kernels.compiled import njit
from rlinit.kernels.inner import twice
from rlinit.sizes import STEP

@njit(cache=True)
def caller(x):
    return twice(x) + STEP
"""
INNER = """\
from rlinit.kernels.compiled import njit

@njit(cache=True)
def twice(x):
    return 2 * x
"""
ASK = """\
from rlinit.kernels.caller import caller
print(caller(10), sum(caller.stats.cache_hits.values()), caller.stats.cache_path)
"""


ARRAYS = """\
import numpy as np
from rlinit.kernels.compiled import njit

@njit
def made(n):
    return np.ones(n)

@njit(inline="always")
def first(x):
    return x[0]

@njit(_nrt=False)
def quick(n):
    return made(n).sum() + first(made(n))

@njit
def part(n):
    return made(n)[1:]

print(quick(3), part(3).sum())
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package of the same name with two kernels in two files, and a constant in a third."""
    root = tmp_path / "rlinit"
    (root / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "kernels/__init__.py"):
        (root / name).write_text("")
    shutil.copy(compiled.__file__, root / "kernels" / "compiled.py")
    (root / "sizes.py").write_text("STEP = 1\n")
    (root / "kernels" / "inner.py").write_text(INNER)
    (root / "kernels" / "caller.py").write_text(CALLER)
    return root


def ask(package: Path) -> tuple[int, int, Path]:
    """Call the outer kernel in a fresh process; return its result, how often it was found on disk, and its folder."""
    result, hits, folder = run(package, ASK).split()
    return int(result), int(hits), Path(folder)


def run(package: Path, program: str) -> str:
    """Return what a program that imports the package prints in a fresh process, warnings left out."""
    return start(package, program).stdout.strip()


def start(package: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the package in a fresh process to its end, which must be a good one."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")}
    environment |= {"XDG_CACHE_HOME": str(package.parent / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, text=True, check=True)


def test_a_change_in_another_file_is_noticed(package: Path) -> None:
    """A kernel is compiled anew when one it calls, or a constant it reads from another file, changed; else found."""
    assert ask(package)[:2] == (21, 0)
    assert ask(package)[:2] == (21, 1)
    (package / "kernels" / "inner.py").write_text(INNER.replace("2 * x", "3 * x"))
    assert ask(package)[:2] == (31, 0)
    (package / "sizes.py").write_text("STEP = 5\n")
    assert ask(package)[:2] == (35, 0)
    (package / "sizes.py").write_text("STEP = 1\n")
    assert ask(package)[:2] == (31, 1)


def test_a_change_of_a_caller_s_bundle_is_noticed(package: Path) -> None:
    """A kernel that reads fields of its caller's bundle is compiled anew when their order changes."""
    inner = INNER.replace("(x):\n    return 2 * x", "(pair):\n    return 2 * pair.first")
    bundle = "from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    first: int\n    second: int\n\n"
    (package / "kernels" / "inner.py").write_text(inner)
    caller = bundle + CALLER.replace("twice(x)", "twice(Pair(first=x, second=1))")
    (package / "kernels" / "caller.py").write_text(caller)
    assert ask(package)[0] == 21
    swapped = caller.replace("    first: int\n    second: int", "    second: int\n    first: int")
    (package / "kernels" / "caller.py").write_text(swapped)
    assert ask(package)[0] == 21


BOTH = """\
from rlinit.kernels.caller import caller
from rlinit.kernels.inner import twice
calls = {calls}
print(*calls, len(twice.overloads), sum(twice.stats.cache_hits.values()))
"""


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ("caller(10), caller(10)", ["21 21 0 0", "21 21 0 0"]),
        ("caller(10), twice(4)", ["21 8 1 0", "21 8 1 1"]),
        ("twice(4), caller(10)", ["8 21 1 0", "8 21 1 1"]),
    ],
)
def test_what_only_kernels_call_has_no_wrapper_for_python(calls: str, told: list[str], package: Path) -> None:
    """A kernel is compiled for Python where Python calls it, in whatever order, and is then found on disk."""
    assert [run(package, BOTH.format(calls=calls)) for _ in told] == told


OPTIMISED = """\
import gc
from rlinit.kernels.caller import caller
from rlinit.kernels.compiled import _Library
caller(10)
libraries = [one for one in gc.get_objects() if type(one) is _Library]
print(*sorted(one.name for one in libraries if one._asked), len(libraries))
"""


def test_what_only_kernels_call_is_optimised_within_them(package: Path) -> None:
    """Of a kernel and the one that it calls, that which Python calls is made machine code, and nothing else."""
    assert run(package, OPTIMISED) == "caller 2"


@pytest.mark.compiled
def test_arrays_are_counted_whoever_asks_for_them_first(package: Path) -> None:
    """Numba lets a kernel go without where its first caller does, and then refuses it, or lets others free it."""
    assert run(package, ARRAYS).split() == ["4.0", "2.0"]


def test_nothing_is_written_into_the_package(package: Path) -> None:
    """Compiled code lies in the user's cache, so that the installation may be read-only; another checkout finds it."""
    folder = ask(package)[2]
    assert folder.is_relative_to(package.parent / "cache")
    assert not list(package.rglob("*.nb?"))
    elsewhere = package.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(package, elsewhere / "rlinit")
    (elsewhere / "cache").symlink_to(package.parent / "cache")
    assert ask(elsewhere / "rlinit")[:2] == (21, 1)


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "one byte"])
def test_damaged_files_are_compiled_anew(damage: str, package: Path) -> None:
    """A file that is not what was written is not run; one line says so, and the next process finds a whole one."""
    ask(package)
    files = [path for path in (package.parent / "cache").rglob("*") if path.is_file()]
    assert files
    for path in files:
        whole = path.read_bytes()
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "one byte": flipped}.get(damage, whole[::-1]))
    told = start(package, ASK)
    assert told.stdout.split()[:2] == ["21", "0"]
    (line,) = told.stderr.splitlines()
    assert "damaged" in line
    assert ask(package)[:2] == (21, 1)


FULL = """\
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))  # more cannot be written to any file
"""


@pytest.mark.parametrize("why", ["full", "no folder", "read-only"])
def test_where_nothing_can_be_kept_kernels_run_all_the_same(why: str, package: Path) -> None:
    """On a full disk and in a folder that cannot be written to, every process compiles, and says so once."""
    cache = package.parent / "cache"
    if why == "no folder":
        cache.write_text("")
    elif why == "read-only":
        cache.mkdir(mode=0o555)
        if os.access(cache, os.W_OK):
            pytest.skip("this user may write to read-only folders")
    for _ in range(2):
        told = start(
            package, (FULL if why == "full" else "") + ASK + "from rlinit.kernels.inner import twice\ntwice(1)"
        )
        assert told.stdout.split()[:2] == ["21", "0"]
        (line,) = told.stderr.splitlines()
        assert str(cache) in line
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_every_kernel_uses_it() -> None:
    """No module takes ``njit`` from numba itself."""
    root = Path(compiled.__file__).parent.parent
    for folder in (root, *(root / name for name in ("exact", "datasets", "train"))):
        for path in folder.rglob("*.py"):
            assert path.name == "compiled.py" or "from numba import" not in path.read_text(), path


def test_the_hash_follows_imports() -> None:
    """The hash of a module covers what it imports; a module that imports nothing has the hash of its own text."""
    assert compiled.source_hash("rlinit.errors") == compiled.source_hash("rlinit.errors")
    assert "rlinit.kernels.compiled" in compiled._text_of("rlinit.kernels.stages.slicing")[1]


def test_no_kernel_needs_python_objects() -> None:
    """Kernels print nothing and raise with constant messages: called by others, they have no Python objects."""
    root = Path(rlinit.__file__).parent
    for path in [*root.glob("kernels/**/*.py"), *root.parent.glob("exact/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            compiled = isinstance(node, ast.FunctionDef) and any("njit" in ast.unparse(d) for d in node.decorator_list)
            for inner in ast.walk(node) if compiled else ():
                if isinstance(inner, ast.Call):
                    assert ast.unparse(inner.func) != "print", (path, inner.lineno)
                if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call):
                    assert all(isinstance(each, ast.Constant) for each in inner.exc.args), (path, inner.lineno)
