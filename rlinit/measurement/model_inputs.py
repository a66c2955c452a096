"""Inputs for running a model: from files, or random ones of the right shapes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinit.errors import InvalidPlan
from rlinit.files import read_array
from rlinit.importers.torch.export import import_torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def model_inputs(
    program: ExportedProgram,
    *,
    files: Sequence[str | Path] = (),
    inputs: int = 1,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword inputs of an exported program.

    Parameters
    ----------
    program
        The program; plain values among its inputs (numbers, switches, None) are those that it was exported for.
    files
        One ``.npy`` file for each tensor, in the program's order; none: normal random numbers, and zeros and ones where
        the type is no floating-point one, which are legal indices.
    inputs
        Inputs of the plan; first dimensions that are dynamic hold `batch` rows for each of them.
    batch, dims
        Values of dynamic dimensions, as for `rlinit.importers.torch.export.from_program`; without `batch`, one row.
    seed
        Of the random numbers.

    Raises
    ------
    InvalidPlan
        A file that cannot be read, or too many or few of them.
    InvalidGraph
        A dynamic dimension that no value was chosen for.
    BackendUnavailable
        torch is not installed.
    """
    torch = import_torch()
    from torch.export.graph_signature import InputKind
    from torch.utils import _pytree as pytree

    from rlinit.importers.torch.symbolic_sizes import SizeTable

    sizes = SizeTable(program, batch, dims or {})
    generator = torch.Generator().manual_seed(seed)
    wanted = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    leaves: list[Any] = []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in wanted:
            continue
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            leaves.append(value)
            continue
        shape = sizes.shape(value, node.name)
        if value.dim() and isinstance(value.shape[0], torch.SymInt):
            shape[0] = inputs * (batch or 1)
        leaves.append(_random(shape, value.dtype, generator))
    if files:
        tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(files) != len(tensors):
            raise InvalidPlan(f"there are {len(files)} files of inputs; the model has {len(tensors)} tensors as inputs")
        for at, path in zip(tensors, files, strict=True):
            leaves[at] = torch.from_numpy(read_array(path)).to(leaves[at].dtype)
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)


def _random(shape: Sequence[int], dtype: Any, generator: Any) -> Any:
    """Return normal numbers, or zeros and ones, which are legal where integers are indices."""
    import torch

    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)
