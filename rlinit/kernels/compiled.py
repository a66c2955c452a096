"""numba's ``njit`` for every kernel of the package, with compiled code filed under a hash of the sources it is from.

numba files compiled code beside the module and compares that module's text alone. A kernel that calls one of another
file, or reads a constant from there, is then taken for current after the other file has changed. Here a kernel's folder
is named by the text of its module, of every module of the package that this imports, directly or by way of others, and
of every module with kernels or array bundles that imports it: a kernel reads the fields of bundles by their place, and
those are often defined by its callers. Changed sources have another folder, equal ones share it (in every checkout),
and the installation may be read-only.

A file of compiled code is run only where it is whole: machine code that was cut or overwritten ends the process. What
cannot be read or written there is compiled in every process that needs it, which a warning says once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.core.targetconfig import ConfigStack
from numba.core.types import unliteral
from numba.core.types.functions import BaseFunction

_PACKAGE = "rlinit"

_ROOT = Path(__file__).parent.parent

_UNUSED_DAYS = 30.0
"""Days after which the compiled code of an older text of a module is removed."""

_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_PACKAGE}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+({_PACKAGE}[\w.]*))",
    re.MULTILINE,
)


@functools.cache
def cache_root() -> Path:
    """Return the folder for compiled code, which need not exist: in ``$NUMBA_CACHE_DIR``, else in the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen) / _PACKAGE
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / _PACKAGE / "kernels"
    except RuntimeError:  # the user has no home
        return Path(tempfile.mkdtemp(prefix=f"{_PACKAGE}-kernels-"))


def _path_of(module: str) -> Path | None:
    """Return the file of a module of the package, or None if there is no such module."""
    inside = _ROOT.joinpath(*module.split(".")[1:])
    return next((path for path in (inside.with_suffix(".py"), inside / "__init__.py") if path.is_file()), None)


@functools.cache
def _text_of(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the text of a module, and the modules of the package that it imports anywhere."""
    path = _path_of(module)
    if path is None:
        return b"", ()
    text = path.read_bytes()
    found: set[str] = set()
    for source, names, plain in _IMPORT.findall(text.decode()):
        found.add(source or plain)
        found |= {f"{source}.{name.split()[0]}" for name in names.strip("()").split(",") if source and name.split()}
    return text, tuple(sorted(name for name in found if name.count(".") and _path_of(name) is not None))


@functools.cache
def _bundling_modules() -> tuple[str, ...]:
    """Return the modules of the package that have kernels or define named tuples."""
    found = []
    for folder, _, files in sorted(os.walk(_ROOT, followlinks=True)):
        for name in sorted(files):
            if name.endswith(".py") and name != "__init__.py":
                path = Path(folder, name)
                if any(word in path.read_bytes() for word in (b"njit", b"NamedTuple")):
                    found.append(".".join((_PACKAGE, *path.relative_to(_ROOT).with_suffix("").parts)))
    return tuple(found)


@functools.cache
def _imported_by(module: str) -> frozenset[str]:
    """Return a module and all of the package that it imports, directly or by way of others."""
    seen, waiting = {module}, [module]
    while waiting:
        new = set(_text_of(waiting.pop())[1]) - seen
        seen |= new
        waiting += new
    return frozenset(seen)


@functools.cache
def source_hash(module: str) -> str:
    """Return a hash of the texts that the compiled code of a module depends on.

    They are those of the module, of all that it imports, and of the modules with kernels or bundles that import it.
    """
    texts = _imported_by(module) | {name for name in _bundling_modules() if module in _imported_by(name)}
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\0".encode())
        digest.update(_text_of(name)[0])
    return digest.hexdigest()[:16]


def package_hash() -> str:
    """Return a hash of the text of every module of the package, and of the versions that compile them."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for folder, _, files in sorted(os.walk(_ROOT, followlinks=True)):
        for name in sorted(files):
            if name.endswith(".py"):
                digest.update(name.encode() + Path(folder, name).read_bytes())
    return digest.hexdigest()[:16]


class _SourceHashLocator(caching._CacheLocator):
    """Where numba files the compiled code of this package's kernels; no other package's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        module = function.__module__
        self._line = function.__code__.co_firstlineno
        self._hash = source_hash(module)
        self._folder = cache_root() / f"{module.removeprefix(_PACKAGE + '.')}-{self._hash}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> _SourceHashLocator:
        return cls(function)

    def ensure_cache_path(self) -> None:
        if not self._folder.exists():
            _remove_unused(self._folder)
            self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._hash

    def get_disambiguator(self) -> str:
        return str(self._line)


def _remove_unused(new: Path) -> None:
    """Remove the folders of older texts of a module that nothing has been written to for long."""
    name = new.name.rpartition("-")[0]
    for old in new.parent.glob(f"{name}-*"):
        with contextlib.suppress(FileNotFoundError):  # another process is as tidy
            if old != new and time.time() - old.stat().st_mtime > _UNUSED_DAYS * 86_400.0:
                shutil.rmtree(old, ignore_errors=True)


class _CheckedFile(caching.IndexDataCacheFile):
    """A file for each signature, which begins with a hash of the rest, in place of numba's files and their index."""

    def _path(self, key: Any) -> Path:
        version = hashlib.sha256(repr((numba.__version__, key)).encode()).hexdigest()[:16]
        return Path(self._index_path).with_suffix(f".{version}.nbc")

    def load(self, key: Any) -> Any:
        """Return what was filed under a key; None where there is nothing, or no longer what was written."""
        path = self._path(key)
        try:
            written = memoryview(path.read_bytes())
        except FileNotFoundError:
            return None
        size = hashlib.sha256().digest_size
        if hashlib.sha256(written[size:]).digest() != written[:size]:
            path.unlink(missing_ok=True)
            _warn_once(f"{cache_root()} holds damaged files; what was in them is compiled anew")
            return None
        filed, data = pickle.loads(written[size:])
        return data if filed == key else None

    def save(self, key: Any, data: Any) -> None:
        """File data under a key, in place of what is there."""
        pickled: bytes = self._dump((key, data))  # type: ignore[no-untyped-call]
        with self._open_for_write(str(self._path(key))) as file:
            file.write(hashlib.sha256(pickled).digest())
            file.write(pickled)


class _CheckedImpl(caching.CompileResultCacheImpl):
    _locator_classes = (_SourceHashLocator,)  # type: ignore[assignment]


class _CheckedCache(caching.FunctionCache):
    """numba's cache of a function, in files that are checked; without them where they cannot be read or written."""

    _impl_class = _CheckedImpl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, "")  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            _warn_once(
                f"compiled code cannot be kept in {cache_root()}, so that it is compiled again: {problem.strerror}"
            )


@functools.cache
def _warn_once(message: str) -> None:
    """Warn on one line, without the line of the source that a plain warning shows."""
    warnings.warn_explicit(message, RuntimeWarning, _PACKAGE, 0)


class _Library(JITCodeLibrary):
    """LLVM code that is optimised and made machine code once Python asks for a pointer into it.

    numba does both to each function as it compiles it, optimises it again in every caller that it is linked into, and
    so on upwards. What only kernels call needs neither: it is optimised as a part of those that Python calls. It has no
    environment of Python objects, so no kernel may print text or raise an error with numbers in its message.
    """

    _asked = False

    @property
    def codegen(self) -> Any:
        """What takes a function's environment, which has no address as long as there is no machine code."""
        return self._codegen if self._asked else self

    def set_env(self, *_: Any) -> None:
        """Do nothing; see `codegen`."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function; 0 where it is none of this library.

        Parameters
        ----------
        name
            As LLVM knows it.
        """
        library: Any = super()
        library._ensure_finalized()
        if not self._asked and any(function.name == name for function in library.get_defined_functions()):
            self._asked = True
            library._optimize_final_module()
            library._finalize_final_module()
        address: int = library.get_pointer_to_function(name)
        return address

    def _optimize_final_module(self) -> None:
        """Wait, as `_finalize_final_module` does, until somebody asks."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


_found: dict[Any, Any] = {}
"""The signature of each call that a kernel has made of an operator or of numba's functions."""

_options: dict[int, tuple[Any, str]] = {}
"""Each caller's options, kept so that no other's have the same number, and their text."""

_find_call_type: Any = BaseFunction.get_call_type


def _call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a call by the types of its arguments.

    numba tries a dozen templates for each operator of each kernel, which was a fifth of compiling
    (`benchmarks.components.startup`). What it finds depends on these types and on the options of the caller.
    """
    stack: Any = ConfigStack()  # type: ignore[no-untyped-call]
    caller = stack.top()
    _, options = _options.setdefault(id(caller), (caller, caller.summary()))
    key = (function, tuple(args), tuple(kws.items()), options)
    if key not in _found:
        _found[key] = _find_call_type(function, context, args, kws)
    return _found[key]


class _Compiler(Compiler):
    """Compiles a kernel, and what it calls of numba's own functions, into libraries that wait to be asked."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function; numba's lock is held."""
        compiler: Any = super()
        codegen: Any = self.state.targetctx.codegen()
        functions: Any = BaseFunction
        before, collects = (codegen._library_class, functions.get_call_type), gc.isenabled()
        codegen._library_class, functions.get_call_type = _Library, _call_type
        gc.disable()
        try:
            return compiler.compile_extra(func)
        finally:
            codegen._library_class, functions.get_call_type = before
            if collects:
                gc.enable()


def _plain(*functions: Any, **_options: Any) -> Any:
    """Stand for ``njit`` where compiling is switched off: the function itself, which is its own Python form."""

    def mark(function: Any) -> Any:
        function.py_func = function
        return function

    return mark(functions[0]) if functions and callable(functions[0]) else mark


def _compiled(*functions: Any, **options: Any) -> Any:
    """Stand for ``numba.njit``: what only other kernels call is compiled without what Python needs to call it.

    A wrapper for Python unpacks every array of every bundle: a quarter of compiling went into those that nobody called
    (`benchmarks.components.startup`). So a kernel that another one calls is compiled by a twin that has none, unless
    Python has called it before with arguments of these types. What the twin compiles is not filed: it is in the code of
    the kernels that call it. A number that is written out in a call counts as any other: numba would compile again.

    LLVM inlines a kernel with ``inline="always"``, where numba would copy it into each caller before it infers types
    there. Such a kernel counts no references, so that it may not make or return arrays; one that does says
    ``forceinline=True`` instead. Others count references whoever calls them first, which numba would go by.
    """
    inlined = options.pop("inline", None) == "always"
    options = {"forceinline": inlined, "_nrt": not inlined} | options

    def mark(function: Any) -> Any:
        compiling: Any = numba.njit
        shared = {**options, "cache": False, "no_cfunc_wrapper": True, "pipeline_class": _Compiler}
        kernel = compiling(**shared)(function)
        twin = compiling(**shared, no_cpython_wrapper=True)(function)
        if options.get("cache"):
            kernel._cache = _CheckedCache(function)

        def call_template(args: Any, kws: Any) -> Any:
            types = tuple(map(unliteral, kernel._compiler.fold_argument_types(args, kws)[1]))
            return type(kernel).get_call_template(kernel if types in kernel.overloads else twin, types, {})

        def overload(types: Any) -> Any:
            return (kernel if tuple(types) in kernel.overloads else twin).overloads[tuple(types)].entry_point

        kernel.get_call_template, kernel.get_overload = call_template, overload
        return kernel

    return mark(functions[0]) if functions and callable(functions[0]) else mark


if not config.DISABLE_JIT:  # type: ignore[attr-defined]
    cpu_target.target_context.refresh()  # what the first kernel would load inside its search's time limit

njit = numba.njit  # what type checkers see
njit = _plain if config.DISABLE_JIT else _compiled  # type: ignore[attr-defined]
