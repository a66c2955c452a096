"""What several commands read from their arguments."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rlinit.errors import InvalidHardware, RlinitError
from rlinit.files import read_array
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.limits import closest
from rlinit.plan import Plan

if TYPE_CHECKING:
    from rlinit.costs.table import CostTable

Model = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="MODEL",
        help="A graph or model file (.json, .json.gz, .pt2, .onnx, .tflite, .keras), or zoo:NAME for a network of the "
        "zoo (zoo:resnet152).",
    ),
]

Models = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="MODEL", help="As for other commands; several: models that share the devices, see --rates."),
]

HardwareName = Annotated[
    str,
    tyro.conf.arg(
        aliases=("--hardware",),
        help="A hardware file (.toml, .json) or a preset (edge-tpu-K, cpu-t4-a100, moirai-inter, moirai-intra, "
        "gpt3-nodes, or devices joined as in 2xrtx3090+cpu).",
    ),
]

PICTURES = (".svg", ".png", ".pdf")
"""Endings of files that plans are drawn to."""

TABLES = (".csv",)
"""Endings of files that cost tables are written to."""


@dataclass(frozen=True)
class ReadingOptions:
    """How a model file becomes a graph."""

    batch: int | None = None
    """Batch size of a model file whose first dimension is dynamic."""
    dims: tuple[str, ...] = ()
    """Sizes of other dynamic dimensions of a model file, as NAME=SIZE."""
    sharing: Literal["hold", "colocate", "copy"] = "hold"
    """Who holds parameters that several ops read: each device that runs some of them (hold), or each op (copy).
    With colocate these ops stay together."""
    costs: tuple[str, ...] = ()
    """Times of ops: files as measure and calibrate write them (.csv), or a trace of torch.profiler (trace.json);
    folders of measured tables of devices (FOLDER or KIND=FOLDER) for what files do not time."""
    dtype: str | None = None
    """Type of a model's numbers: fp32, tf32, fp16, bf16, fp8, int8, int4, or WEIGHTS/ACTIVATIONS such as int4/fp16.
    By default what the file says; for the zoo and .keras files fp32, but int8 on Edge TPUs."""
    granularity: Literal["op", "layer", "module"] = "op"
    """What stays on one device or stage: nothing, each repeated block of the model, or each innermost module."""
    keep: tuple[str, ...] = ()
    """Modules to keep whole, as patterns of their paths or classes, such as '*Attention'."""

    def check(self) -> None:
        """Refuse costs that are not there before anything is read or imported.

        Raises
        ------
        RlinitError
            There is no such file or folder.
        """
        for entry in self.costs:
            if not Path(entry).is_file() and not Path(entry.rpartition("=")[2]).is_dir():
                raise RlinitError(f"there is no file or folder {entry!r} (--costs)")

    @property
    def cost_files(self) -> list[Path]:
        """Files among the costs."""
        return [Path(entry) for entry in self.costs if Path(entry).is_file()]

    @property
    def numbers(self) -> Any:
        """What `load_graph` takes for `dtype`."""
        from rlinit.importers.common.precision import dtype_of

        return dtype_of(self.dtype)

    def of(self, plan: Plan) -> ReadingOptions:
        """Return the options with the types of numbers that a plan was made for, where none are named."""
        chosen = self.dtype or plan.provenance.get("dtype")
        return replace(self, dtype=None if chosen is None else str(chosen))

    def on(self, model: str, hardware: Hardware | None = None) -> ReadingOptions:
        """Return the options with a dtype, where none was chosen and the model's own says little of how it will run.

        Parameters
        ----------
        model
            The file, or zoo:NAME, which are in FP32 as they were trained, or quantised to INT8 for Edge TPUs.
        hardware
            What it is for.
        """
        if self.dtype is not None or not (model.startswith("zoo:") or model.lower().endswith(".keras")):
            return self
        quantised = hardware is not None and all(device.kind == "edge-tpu" for device in hardware.devices)
        return replace(self, dtype="int8" if quantised else "fp32")


def load_model(model: str, options: ReadingOptions, hardware: Hardware | None = None) -> Graph:
    """Return the graph of a model file, or of a network of the zoo where the name starts with ``zoo:``.

    Parameters
    ----------
    model
        The file, or zoo:NAME.
    options
        How to read it.
    hardware
        What it is for, where that is known: the dtype may go by it, see `ReadingOptions.on`.

    Raises
    ------
    RlinitError
        There is no such file or network, or options do not apply to it.
    """
    options = options.on(model, hardware)
    if model.startswith("zoo:"):
        graph = _zoo_network(model.removeprefix("zoo:"), options)
    else:
        _refuse_missing(model)
        graph = _read_file(model, options)
    if options.granularity != "op" or options.keep:
        graph = graph.group(options.granularity, keep=options.keep)
    return price(graph, options, hardware)


def load_models(
    models: Sequence[str], rates: Sequence[float], options: ReadingOptions, hardware: Hardware | None = None
) -> dict[str, tuple[Graph, float]]:
    """Return graphs and rates of models that share devices by name, as `Graph.union` takes them.

    Parameters
    ----------
    models
        Files, or zoo:NAME.
    rates
        Of each, in that order; none: 1.
    options, hardware
        See `load_model`.

    Raises
    ------
    RlinitError
        No model, or not one rate for each; otherwise as for `load_model`.
    """
    if not models or len(rates) not in (0, len(models)):
        raise RlinitError(f"--rates has {len(rates)} numbers for {len(models)} models; expected a model, a rate each")
    graphs = [load_model(model, options, hardware) for model in models]
    alike = len({graph.name for graph in graphs}) < len(graphs)
    names = [f"{graph.name}-{at}" if alike else graph.name for at, graph in enumerate(graphs)]
    return dict(zip(names, zip(graphs, rates or [1.0] * len(graphs), strict=True), strict=True))


def price(graph: Graph, options: ReadingOptions, hardware: Hardware | None) -> Graph:
    """Return a graph with the costs that were asked for.

    Parameters
    ----------
    graph
        As it was read.
    options
        Name files and folders.
    hardware
        Whose devices measured tables are for.

    Raises
    ------
    RlinitError
        A folder of measured tables where no hardware is known; otherwise as for `with_costs` and `cost_table`.
    """
    for path in options.cost_files:
        graph = cost_table(path, graph).apply(graph)
    folders = measured_folders(options.costs)
    if not folders:
        return graph
    if hardware is None:
        raise RlinitError(f"--costs {options.costs[0]}: measured tables are for devices; say --hw")
    from rlinit.costs.measured_graph import with_costs

    return with_costs(graph, hardware, folders)


def measured_folders(entries: Sequence[str]) -> list[Any]:
    """Return the measured tables of folders among costs, given as FOLDER or KIND=FOLDER."""
    folders = [entry for entry in entries if not Path(entry).is_file()]
    if not folders:
        return []
    from rlinit.costs.tables import load

    split = [("", entry) if Path(entry).is_dir() else tuple(entry.split("=", 1)) for entry in folders]
    return [load(folder, device=kind) for kind, folder in split]


def cost_table(path: Path, graph: Graph) -> CostTable:
    """Return the cost table of a file, or of a trace of torch.profiler where its name ends in ``trace.json[.gz]``.

    Parameters
    ----------
    path
        The file.
    graph
        What a trace is of.

    Raises
    ------
    InvalidCostTable
        The file is neither, or a trace of another model.
    """
    from rlinit.costs.profiler_trace import load_trace
    from rlinit.costs.table import CostTable

    if path.name.endswith(("trace.json", "trace.json.gz")):
        return load_trace(path, graph)
    return CostTable.load(path)


def _zoo_network(name: str, options: ReadingOptions) -> Graph:
    from rlinit.datasets.zoo import imagenet

    given = [flag for flag, value in (("--batch", options.batch), ("--dims", options.dims)) if value]
    if given:
        raise RlinitError(
            f"{' and '.join(given)}: networks of the zoo have one input of fixed size; export the model to a file "
            "(.onnx, .pt2) to choose another"
        )
    return imagenet.load(name, dtype=options.numbers)


def _refuse_missing(model: str) -> None:
    """Name the network of the zoo that a missing file may stand for."""
    if Path(model).exists() or Path(model).suffix:
        return
    from rlinit.datasets.zoo import imagenet

    try:
        Hardware.preset(model)
    except InvalidHardware:
        networks = [f"zoo:{name.lower()}" for name in imagenet.NAMES]
    else:
        raise RlinitError(f"{model!r} is no model but hardware, which is named by --hw")
    raise RlinitError(f"there is no file {model!r}{closest(f'zoo:{model.lower()}', networks)}")


def _read_file(model: str, options: ReadingOptions) -> Graph:
    from rlinit.importers import load_graph

    sizes = dimension_sizes(options.dims)
    return load_graph(model, batch=options.batch, dims=sizes, sharing=options.sharing, dtype=options.numbers)


def load_hardware(name: str, stages: int | None = None) -> Hardware:
    """Return the hardware of a file (.toml, .json) or preset, with k stage slots where that is asked for.

    Parameters
    ----------
    name
        The file or preset.
    stages
        k, where it is asked for.

    Raises
    ------
    InvalidHardware
        An unknown preset, a malformed file, or devices of which k cannot be chosen.
    """
    hardware = Hardware.load(name) if Path(name).suffix in (".toml", ".json") else Hardware.preset(name)
    return hardware if stages is None else hardware.with_stages(stages)


def dimension_sizes(entries: Sequence[str]) -> dict[str, int]:
    """Return sizes by dimension, from NAME=SIZE.

    Raises
    ------
    RlinitError
        An entry of another form.
    """
    sizes = {}
    for entry in entries:
        name, _, size = entry.partition("=")
        if not name or not size.isdecimal():
            raise RlinitError(f"--dims {entry!r}: expected NAME=SIZE")
        sizes[name] = int(size)
    return sizes


def device_places(entries: Sequence[str], flag: str = "--devices", example: str = "gpu0=cuda:0") -> dict[str, str]:
    """Return what the plan's devices are called elsewhere, from NAME=DEVICE.

    Parameters
    ----------
    entries, flag, example
        What the flag was given, and for what is wrong with it, its name and what it expects.

    Raises
    ------
    RlinitError
        An entry of another form.
    """
    places = {}
    for entry in entries:
        name, _, device = entry.partition("=")
        if not name or not device:
            raise RlinitError(f"{flag} {entry!r}: expected NAME=DEVICE, such as {example}")
        places[name] = device
    return places


def check_folders(*targets: Path | None) -> None:
    """Refuse to start what could not be written in the end.

    Raises
    ------
    RlinitError
        The folder of a file does not exist.
    """
    for target in targets:
        if target is not None and not target.parent.is_dir():
            raise RlinitError(f"cannot write {target}: the folder {target.parent} does not exist")


def check_endings(target: Path | None, flag: str, *endings: str) -> None:
    """Refuse to start where a file could not be written in the end because of its name.

    Parameters
    ----------
    target
        The file; None: nothing is checked.
    flag
        What names it on the command line.
    endings
        Those of the formats that there are.

    Raises
    ------
    RlinitError
        Another ending.
    """
    if target is not None and target.suffix.lower() not in endings:
        raise RlinitError(f"{flag} {target}: expected a name ending in {', '.join(endings)}")


def check_targets(*targets: Path | None) -> None:
    """Refuse to start where a file could not be written in the end: its folder is tried.

    Raises
    ------
    RlinitError
        A file is a folder, or its folder does not exist or cannot be written to.
    """
    check_folders(*targets)
    for target in targets:
        if target is None:
            continue
        if target.is_dir():
            raise RlinitError(f"cannot write {target}: it is a folder; name a file in it")
        try:
            tempfile.TemporaryFile(dir=target.parent).close()
        except OSError as problem:
            raise RlinitError(f"cannot write {target}: {problem.strerror}") from None


def onnx_inputs(graph: Graph, files: Sequence[Path], seed: int) -> dict[str, Any]:
    """Return arrays for the inputs of an ONNX model by name: from files in order, or random ones.

    Parameters
    ----------
    graph
        The model's, whose inputs have sizes and types.
    files
        One ``.npy`` file for each input, in the model's order; none: normal random numbers, zeros and ones for other
        types than floating-point ones, which are legal indices.
    seed
        Of the random numbers.

    Raises
    ------
    RlinitError
        Too many or few files, or one that cannot be read.
    """
    inputs = [v for v in range(graph.num_ops) if graph.kinds[v] == "input"]
    rows = [graph.extras[v] for v in inputs]
    made = arrays_for([(row["outputs"][0][1:], str(row["outputs"][0][0])) for row in rows], files, seed)
    names = [row.get("tensors", [graph.names[v]])[0] for v, row in zip(inputs, rows, strict=True)]
    return dict(zip(map(str, names), made, strict=True))


def arrays_for(inputs: Sequence[tuple[Sequence[int], str]], files: Sequence[Path], seed: int) -> list[Any]:
    """Return an array for each input of a model: from files in order, or random ones.

    Parameters
    ----------
    inputs
        Shape and type of each.
    files
        One ``.npy`` file for each; none: normal random numbers, zeros and ones for other types than floating-point
        ones, which are legal indices.
    seed
        Of the random numbers.

    Raises
    ------
    RlinitError
        Too many or few files, or one that cannot be read.
    """
    import numpy as np

    if files and len(files) != len(inputs):
        raise RlinitError(f"there are {len(files)} files of inputs; the model has {len(inputs)}")
    generator = np.random.default_rng(seed)
    arrays = []
    for at, (shape, dtype) in enumerate(inputs):
        if files:
            array = read_array(files[at])
        else:
            draws = dtype.startswith("float")
            array = generator.normal(size=shape) if draws else generator.integers(0, 2, size=shape)
        arrays.append(array.astype(dtype))
    return arrays
