"""The commands that need the model itself, not only its graph: ``rlinit run | measure | calibrate``.

They read ``.pt2`` files, whose weights are loaded without opening a pickle (see `rlinit.importers.torch.pt2_weights`).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rlinit.checker.compatibility import require_graph
from rlinit.cli.inputs import (
    TABLES,
    ReadingOptions,
    arrays_for,
    check_endings,
    check_folders,
    device_places,
    dimension_sizes,
    load_hardware,
    load_model,
    onnx_inputs,
    price,
)
from rlinit.cli.output import print_table
from rlinit.errors import ExecutionFailure, InvalidPlan, RlinitError
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.plan import GroupRules, Plan
from rlinit.units import format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.export import ExportedProgram

    from rlinit.costs.table import CostTable
    from rlinit.executors import Execution, Executor
    from rlinit.hardware import Hardware
    from rlinit.measurement.calibration import Calibration

_TOLERANCE = 1e-3
"""Relative to the largest output: how far kernels of other devices and batch sizes may round differently."""

_TOKENS = 16
"""Random tokens of a sequence, where a language model is run without inputs."""

_OTHER_WAYS = {
    ".onnx": "The ops of an ONNX model are not measured here; rlinit run runs its plans by onnxruntime",
    ".keras": "Layers of a Keras model are not measured here; rlinit run runs its plans layer by layer",
    ".tflite": "TFLite models are planned only; their own delegates run them",
    ".json": "A graph has no weights",
    ".pt": "A pickle is never opened; load it in Python, and run the plan by rlinit.run(plan, module, *inputs)",
}
"""What to do with files that cannot be run here; suffix -> advice."""
_OTHER_WAYS[".pth"] = _OTHER_WAYS[".pt"]


@dataclass(frozen=True)
class Run:
    """Run a plan on its model; compare times and outputs."""

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """A plan that schedule wrote (.json)."""
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The model with its weights: .pt2 (from torch.export.save), .onnx (run by onnxruntime) or .keras.
    For plans of stages of several devices a folder or config.json of transformers."""
    graph: Path | None = None
    """The graph that the plan was made for (.json); without it, the one of the model."""
    hw: str | None = None
    """What the plan was made for, as for schedule; --measure needs it for stage plans."""
    devices: tuple[str, ...] = ()
    """Where the plan's devices are, as NAME=cpu or NAME=cuda:N; several may share one.
    By default cuda:N is what it says and everything else the CPU."""
    inputs: tuple[Path, ...] = ()
    """Inputs of the model (.npy), in order; without them, random numbers."""
    outputs: Path | None = None
    """Write the outputs here (.npz)."""
    executor: Literal["local", "pipeline"] = "local"
    """What runs it, one of:
    - local: this process;
    - pipeline: a process for each stage, on this machine unless torchrun started them."""
    microbatches: int = 1
    """With --executor pipeline: parts that a batch is cut into, which follow each other through the stages."""
    check: bool = False
    """Also run the model without the plan and compare the outputs."""
    measure: bool = False
    """Run again and again, and report predicted and measured times."""
    report: Path | None = None
    """With --measure: write the report here (.json), for calibrate."""
    warmup: int = 2
    """Runs that do not count."""
    repeats: int = 10
    """Runs that count."""
    threads: int | None = None
    """With --measure: CPU threads of each device, as given to measure; without it, devices share what torch takes."""
    seed: int = 0
    """Seed of the random inputs."""
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True)
class Measure:
    """Measure every op of a model on this machine.

    The cost table that it writes is what --costs of schedule reads.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The model with its weights (.pt2, from torch.export.save)."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Write the cost table here (.csv)."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices to measure, as cpu, cuda:N, or NAME=cuda:N where the hardware has other names for them."""
    batches: tuple[int, ...] = ()
    """Batch sizes, where the model's is dynamic."""
    hw: str | None = None
    """Hardware file or preset whose links shall be measured, too; its devices are those named by --devices."""
    hw_out: Path | None = None
    """Write the hardware with the measured links here (.json)."""
    fit: bool = False
    """Also put rates and efficiencies that fit the measured ops into the hardware, for other models."""
    together: bool = False
    """For pipelines of processes on this machine's CPU: run the model in 1, 2, ... processes at once.
    How they slow each other, and what handing over takes, is put into --hw-out."""
    clock: Literal["wall", "processor"] = "wall"
    """Count the seconds that the worker was at work, where others use the machine, too (with --threads 1)."""
    cache: Path | None = None
    """Folder that keeps figures, so that an op is measured once on a device."""
    inputs: tuple[Path, ...] = ()
    """Inputs of the model (.npy), in order; without them, random numbers."""
    warmup: int = 2
    """Runs that do not count."""
    repeats: int = 10
    """Runs that count."""
    time_limit_s: float | None = None
    """Stop repeating after this many seconds for a device and batch size."""
    threads: int | None = None
    """CPU threads of an op; without it, as many as torch takes."""
    seed: int = 0
    """Seed of the random inputs."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True)
class Calibrate:
    """Put measured times into a cost table, or fit efficiencies."""

    reports: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[REPORT ...]")]
    """Reports that run --measure --report wrote; later ones win."""
    out: Path
    """Write the cost table here (.csv), or the efficiencies (.toml)."""
    tables: tuple[str, ...] = ()
    """Folders of measured tables, each as FAMILY=FOLDER: efficiencies of families of devices are fitted to them."""
    costs: Path | None = None
    """The table that they correct; without it, a table of what was measured alone."""
    json: bool = False
    """Print JSON instead of text."""


def run_plan(command: Run, arguments: Sequence[str] | None = None) -> int:
    """Carry out ``rlinit run``; return the exit code.

    Parameters
    ----------
    command
        What to do.
    arguments
        The command line it was read from, for the processes of a pipeline; that of this process if None.

    Raises
    ------
    InvalidPlan, InvalidGraph, InvalidCostTable, InvalidHardware, ExecutionFailure, BackendUnavailable
        What went wrong; nothing was printed.
    """
    check_folders(command.outputs, command.report)
    if command.report is not None and not command.measure:
        raise RlinitError("--report needs --measure")
    if command.measure and command.executor != "local":
        raise RlinitError("--measure needs --executor local")
    plan = Plan.load(command.plan)
    if plan.groups is not None and not (command.model.is_dir() or command.model.suffix.lower() == ".json"):
        raise RlinitError(
            f"{command.model}: the plan has stages of several devices, which run with a folder or a "
            "config.json of transformers"
        )
    if (command.executor == "pipeline" or plan.groups is not None) and "RANK" not in os.environ:
        return _start_processes(plan, sys.argv[1:] if arguments is None else arguments)
    if plan.groups is not None:
        return _run_groups(command, plan)
    if command.model.suffix.lower() in (".onnx", ".keras"):
        if command.measure or command.executor != "local":
            raise RlinitError(f"{command.model.suffix} files run by --executor local, and are not measured op by op")
        return (_run_onnx if command.model.suffix.lower() == ".onnx" else _run_keras)(command, plan)
    program = _load_program(command.model)
    from rlinit.executors.local import LocalExecutor
    from rlinit.executors.pipeline import PipelineExecutor
    from rlinit.measurement.model_inputs import model_inputs

    graph = _graph(command, plan, program)
    same = _same_graph(command, plan, graph, needed=command.measure)
    inputs, kwargs = model_inputs(
        program,
        files=command.inputs,
        dims=dimension_sizes(command.reading.dims),
        inputs=plan.inputs,
        batch=command.reading.batch,
        seed=command.seed,
    )
    places = device_places(command.devices)
    executor: Executor = LocalExecutor()
    if command.executor == "pipeline":
        executor = PipelineExecutor(microbatches=command.microbatches)
    known = graph if same else None
    result = executor.execute(plan, program, inputs, kwargs=kwargs, graph=known, devices=places or None)
    if command.executor == "pipeline" and result.outputs is None:
        return 0  # the process with the last stage tells the rest
    found = None
    if command.measure:
        found = _measured(command, plan, program, (*inputs, *kwargs.values()), graph, places)
    return _tell(command, plan, result, _torch_arrays, lambda: _unplaced(program, inputs, kwargs), found)


def measure_model(command: Measure) -> int:
    """Carry out ``rlinit measure``; return the exit code.

    Raises
    ------
    InvalidPlan, InvalidGraph, InvalidCostTable, InvalidHardware, ExecutionFailure, BackendUnavailable
        What went wrong; nothing was written.
    """
    check_folders(command.out, command.hw_out)
    check_endings(command.out, "OUT", *TABLES)
    check_endings(command.hw_out, "--hw-out", ".json")
    if (command.hw is None) != (command.hw_out is None):
        raise RlinitError("--hw and --hw-out belong together")
    if command.fit and command.hw is None:
        raise RlinitError("--fit needs --hw, the hardware whose devices are fitted, and --hw-out")
    if command.together and command.hw is None:
        raise RlinitError("--together needs --hw, whose devices are the processes, and --hw-out")
    program = _load_program(command.model)  # first of all, since it says what to install where torch is missing
    from rlinit.importers.torch.export import from_program
    from rlinit.measurement.model_inputs import model_inputs
    from rlinit.measurement.ops import Measuring, measure_ops
    from rlinit.measurement.roofline_fit import fitted_device
    from rlinit.measurement.together import measure_together
    from rlinit.measurement.transfers import measure_transfers

    dims = dimension_sizes(command.dims)
    graph = from_program(program, dims=dims, name=command.model.stem)
    inputs, kwargs = model_inputs(program, files=command.inputs, dims=dims, seed=command.seed)
    places = device_places(tuple(name if "=" in name else f"{name}={name}" for name in command.devices))
    settings = Measuring(command.warmup, command.repeats, command.threads, command.time_limit_s, command.clock)
    hardware = None if command.hw is None else load_hardware(command.hw)
    links = (
        measure_transfers(places, settings=settings)
        if hardware is not None and len(places) > 1 and not command.together
        else None
    )
    if hardware is not None and command.together:
        _check_processes(hardware, places)
    changed = links.apply(hardware) if links is not None and hardware is not None else hardware
    table = measure_ops(
        program,
        (*inputs, *kwargs.values()),
        graph,
        devices=places,
        batches=command.batches or None,
        settings=settings,
        cache=command.cache,
    )
    table.save(command.out)
    if changed is not None and command.fit:
        fitted = [fitted_device(graph, table, one) if one.name in places else one for one in changed.devices]
        changed = dataclasses.replace(changed, devices=tuple(fitted))
    sharing = None
    if changed is not None and command.together:
        sharing = measure_together(program, inputs, len(changed), kwargs=kwargs, threads=command.threads or 1)
        changed = sharing.apply(changed)
    if changed is not None and command.hw_out is not None:
        changed.save(command.hw_out)
    _print_table(table, as_json=command.json)
    for one in (links, sharing):
        if one is not None and not command.json:
            print(one)
    return 0


def _check_processes(hardware: Hardware, places: Mapping[str, str]) -> None:
    """Refuse hardware of which some device is not measured as a process of this machine's CPU."""
    other = [one.name for one in hardware.devices if "cpu" not in (places.get(one.name), places.get(one.kind))]
    if other or set(places.values()) != {"cpu"}:
        named = f" ({other[0]!r})" if other else ""
        raise RlinitError(
            f"--together is for processes on the CPU; give --devices NAME=cpu for each device{named} or its kind"
        )
    if len(hardware) < 2:
        raise RlinitError(f"--together is for several processes; {hardware.name!r} has one device")


def calibrate_costs(command: Calibrate) -> int:
    """Carry out ``rlinit calibrate``; return the exit code.

    Raises
    ------
    InvalidCostTable
        A report or table that cannot be read, or no report.
    """
    from rlinit.costs.table import CostTable
    from rlinit.measurement.calibration import Calibration

    check_folders(command.out)
    if command.tables:
        return _fit_tables(command)
    check_endings(command.out, "--out", *TABLES)
    if not command.reports:
        raise RlinitError("give at least one report that run --measure --report wrote")
    tables = [Calibration.load(path).table() for path in command.reports]
    table = tables[0] if command.costs is None else CostTable.load(command.costs).updated(tables[0])
    for other in tables[1:]:
        table = table.updated(other)
    table.save(command.out)
    _print_table(table, as_json=command.json)
    return 0


def _fit_tables(command: Calibrate) -> int:
    """Write efficiencies that fit measured tables, and print them with their errors."""
    from rlinit.costs.tables import MeasuredTables, load
    from rlinit.measurement.table_fit import efficiency_toml

    check_endings(command.out, "--out", ".toml")
    families: dict[str, list[MeasuredTables]] = {}
    for entry in command.tables:
        family, _, folder = entry.partition("=")
        if not family or not folder:
            raise RlinitError(f"--tables {entry!r}: expected FAMILY=FOLDER, such as hopper=h100_sxm/vllm-0.24.0")
        families.setdefault(family, []).append(load(folder))
    text = efficiency_toml(families)
    write_atomically(command.out, text)
    print(text, end="")
    return 0


def _run_onnx(command: Run, plan: Plan) -> int:
    """Run a plan of an ONNX model by onnxruntime; return the exit code."""
    from rlinit.executors.onnx import OnnxExecutor

    if command.graph is not None:
        graph = Graph.load(command.graph)
    else:
        graph = load_model(str(command.model), command.reading.of(plan))
    known = graph if _same_graph(command, plan, graph, needed=False) else None
    feeds = onnx_inputs(graph, command.inputs, command.seed)
    places = device_places(command.devices)
    result = OnnxExecutor().execute(plan, command.model, (), kwargs=feeds, graph=known, devices=places)

    def whole() -> dict[str, Any]:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        session = onnxruntime.InferenceSession(str(command.model), providers=["CPUExecutionProvider"])
        names = list(result.outputs)
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return _tell(command, plan, result, lambda outputs: list(outputs.values()), whole)


def _run_keras(command: Run, plan: Plan) -> int:
    """Run a plan of a Keras model layer by layer; return the exit code."""
    from rlinit.executors.keras_layers import KerasExecutor
    from rlinit.importers.keras.reader import import_keras
    from rlinit.importers.keras.reader import load_model as load_keras_model

    keras, model = import_keras(), load_keras_model(command.model)
    inputs = arrays_for(
        [((command.reading.batch or 1, *x.shape[1:]), str(x.dtype)) for x in model.inputs], command.inputs, command.seed
    )
    result = KerasExecutor().execute(plan, model, inputs, devices=device_places(command.devices))

    def arrays(outputs: Any) -> list[NDArray[Any]]:
        return [keras.ops.convert_to_numpy(value) for value in keras.tree.flatten(outputs)]

    return _tell(command, plan, result, arrays, lambda: model(inputs if len(inputs) > 1 else inputs[0]))


def _run_groups(command: Run, plan: Plan) -> int:
    """Run this process's part of stages of several devices on a language model of transformers; return the exit code.

    A plan of training takes a step, whose targets are the next tokens; one of inference gives logits.
    """
    import torch

    from rlinit.executors.groups import DistributedModel, next_token_loss

    rank, names = int(os.environ["RANK"]), [name for use in plan.stages for name in use.devices]
    model = _decoder(command)
    mine = DistributedModel(plan, model, device=device_places(command.devices).get(names[rank], "cpu"))
    shape = (mine.rules.microbatches, _TOKENS)
    tokens = torch.randint(int(model.config.vocab_size), shape, generator=torch.Generator().manual_seed(command.seed))
    if command.inputs:
        tokens = torch.from_numpy(arrays_for([(shape, "int64")], command.inputs[:1], command.seed)[0])
    if mine.rules.training:
        step = mine.step(tokens, tokens, next_token_loss)
        found, made = {"loss": step.loss, "seconds": step.seconds, "in_flight": step.in_flight}, mine.gradients()
    else:
        made = {str(m): logits for m, logits in mine.logits(tokens).items()}
        found = {"answered": len(made)}
    if command.check:
        true = _whole_decoder(command, tokens, mine.rules, made)
        found["difference"] = _difference(_torch_arrays(made), _torch_arrays(true))
    if rank == len(names) - 1:
        row = {"graph": plan.graph, "stages": plan.num_stages, "processes": len(names), **found}
        print(json.dumps(row, indent=1) if command.json else ", ".join(f"{key} {value}" for key, value in row.items()))
    mine.close()
    return 0


def _decoder(command: Run) -> Any:
    """Return the language model of a folder, or of a configuration with random weights, the same in every process."""
    import torch
    from transformers import AutoConfig
    from transformers.models.auto import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # It has no types.
    if command.model.is_dir() and any(command.model.glob("*.safetensors")):
        return auto.from_pretrained(command.model).eval()
    try:
        config = AutoConfig.from_pretrained(command.model)
    except (OSError, ValueError) as problem:
        first = str(problem).partition("\n")[0]
        raise RlinitError(f"{command.model}: expected a folder or config.json of transformers ({first})") from None
    torch.manual_seed(command.seed)
    return auto.from_config(config).eval()


def _whole_decoder(command: Run, tokens: Any, rules: GroupRules, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one process with the whole model has for each of some gradients, or answers by micro-batch."""
    import torch

    from rlinit.executors.groups import next_token_loss

    whole = _decoder(command)
    logits = whole(tokens).logits
    if not rules.training:
        answers = logits.detach().chunk(rules.microbatches)
        return {m: answers[int(m)] for m in parts}
    torch.autograd.backward(next_token_loss(logits, tokens))
    tied = whole.get_output_embeddings().weight
    known = {name: value.grad for name, value in whole.named_parameters()}
    return {name: known.get(name, tied.grad) for name in parts}


# -- what the commands read ------------------------------------------------------------------------------------


def _load_program(path: Path) -> ExportedProgram:
    suffix = path.suffix.lower()
    if suffix != ".pt2":
        raise RlinitError(
            f"{path}: running needs the model with its weights as a .pt2 file, from torch.export.save. "
            + _OTHER_WAYS.get(suffix, "A module in Python runs by rlinit.run(plan, module, *inputs)")
        )
    from rlinit.importers.torch.pt2_weights import load_model

    return load_model(path)


def _graph(command: Run, plan: Plan, program: ExportedProgram) -> Graph:
    """Return the graph that the plan was made for."""
    from rlinit.importers.torch.export import from_program

    if command.graph is not None:
        graph = Graph.load(command.graph)
    else:
        reading = command.reading.of(plan)
        dims = dimension_sizes(reading.dims)
        graph = from_program(
            program,
            batch=reading.batch,
            dims=dims,
            sharing=reading.sharing,
            dtype=reading.numbers,
            name=command.model.stem,
        )
    return price(graph, command.reading, None)


def _same_graph(command: Run, plan: Plan, graph: Graph, *, needed: bool) -> bool:
    """Return whether a graph is the plan's to the last cost and group.

    One that is not may still be of the same model, which executors check; its times are not the plan's, and where those
    are needed, or the graph was given, it is refused.
    """
    try:
        require_graph(plan, graph)
    except InvalidPlan as problem:
        if command.graph is not None:
            raise
        if not needed:
            return False
        raise InvalidPlan(
            f"{problem}; name the cost table the plan was made with (--costs) and its --batch, --dims and --sharing, "
            "or give the graph itself (--graph)"
        ) from None
    return True


def _start_processes(plan: Plan, arguments: Sequence[str]) -> int:
    """Run the command again, in a process for each device of the plan's stages; end them all where one fails."""
    import subprocess

    if plan.assignment is None or not plan.stages:
        raise InvalidPlan(f"a {plan.objective} plan that is {plan.status} has no stages; a pipeline needs them")
    count = sum(use.replicas * use.tensor_parallel for use in plan.stages)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    with subprocess.Popen([*launch, "-m", "rlinit.cli.main", *arguments]) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise
    if code != 0:
        raise ExecutionFailure("a process of the pipeline failed or was ended, and all others with it; see above")
    return 0


# -- what they find out ----------------------------------------------------------------------------------------


def _measured(
    command: Run,
    plan: Plan,
    program: ExportedProgram,
    inputs: tuple[Any, ...],
    graph: Graph,
    places: Mapping[str, str],
) -> Calibration:
    from rlinit.measurement.calibration import calibrate
    from rlinit.measurement.ops import Measuring

    return calibrate(
        plan,
        program,
        inputs,
        graph=graph,
        hardware=None if command.hw is None else load_hardware(command.hw),
        devices=places or None,
        settings=Measuring(command.warmup, command.repeats, command.threads),
    )


def _unplaced(program: ExportedProgram, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return program.module()(*inputs, **kwargs)


def _torch_arrays(outputs: Any) -> list[NDArray[Any]]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = [leaf.cpu() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    # NumPy knows no bfloat16.
    return [(leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy() for leaf in leaves]


def _difference(mine: Sequence[NDArray[Any]], true: Sequence[NDArray[Any]]) -> float:
    """Return the largest difference from the model run as a whole, relative to the largest output.

    Raises
    ------
    InvalidPlan
        It is more than rounding explains.
    """
    import numpy as np

    worst = 0.0
    for one, other in zip(mine, true, strict=True):
        if not other.size or other.dtype.kind not in "biufc":
            continue
        wide = np.complex128 if other.dtype.kind == "c" else np.float64
        left, right = one.astype(wide), other.astype(wide)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(np.where(same, 0.0, np.abs(left - right)), nan=np.inf, posinf=np.inf)
        size = np.abs(right)
        worst = max(worst, float(apart.max() / max(size[np.isfinite(size)].max(initial=0.0), 1e-30)))
    if worst > _TOLERANCE:
        raise InvalidPlan(
            f"the plan's outputs differ from the model's own by {worst:.2g} of the largest; more than {_TOLERANCE:g} "
            "is not rounding (random ops such as dropout would do it: export in eval mode)"
        )
    return worst


# -- what they print -------------------------------------------------------------------------------------------


def _tell(
    command: Run,
    plan: Plan,
    result: Execution,
    arrays: Callable[[Any], list[NDArray[Any]]],
    whole: Callable[[], Any],
    found: Calibration | None = None,
) -> int:
    """Compare with the model as a `whole` if that was asked for, write what was asked for and print the rest."""
    import numpy as np

    made = None if result.outputs is None else arrays(result.outputs)
    difference = _difference(made, arrays(whole())) if command.check and made is not None else None
    if command.outputs is not None and made is not None:
        named: dict[str, Any] = {f"output{at}": array for at, array in enumerate(made)}
        with command.outputs.open("wb") as file:
            np.savez(file, **named)
    if found is not None and command.report is not None:
        found.save(command.report)
    if command.json:
        print(json.dumps(_run_row(plan, result, difference, found), indent=1))
    else:
        _print_run(plan, result, difference, found)
    return 0


def _run_row(plan: Plan, result: Execution, difference: float | None, found: Calibration | None) -> dict[str, Any]:
    row: dict[str, Any] = {"graph": plan.graph, "objective": plan.objective, "seconds": result.seconds}
    row["predicted_s"] = _predicted_s(plan)
    if difference is not None:
        row["difference"] = difference
    if found is not None:
        row["measured"] = {**found.to_dict(), "rank_correlation": found.rank_correlation}
    return row


def _predicted_s(plan: Plan) -> float | None:
    """Return the seconds of one run by the plan: the makespan, or one input through all stages; None without times."""
    if plan.objective == "memory":
        return None
    return plan.value if plan.batches else sum(use.time_s for use in plan.stages)


def _print_run(plan: Plan, result: Execution, difference: float | None, found: Calibration | None) -> None:
    predicted = _predicted_s(plan)
    says = "" if predicted is None else f"; the plan says {format_seconds(predicted)}"
    print(f"{plan.graph} on {plan.hardware}: one run took {format_seconds(result.seconds)}{says}")
    if difference is not None:
        print(f"outputs equal the model's own (largest difference {difference:.1g} of the largest output)")
    if found is None:
        return
    spread = found.spread_s / found.measured_s if found.measured_s > 0 else 0.0
    print(
        f"predicted {format_seconds(found.predicted_s)}, measured {format_seconds(found.measured_s)} "
        f"(median of {found.repeats}, spread {spread:.0%}, least {format_seconds(found.least_s)}): "
        f"factor {found.factor:.2f}"
    )
    rank = found.rank_correlation
    print("ops: " + ("too few to correlate" if rank is None else f"rank correlation {rank:.3f}"))
    for device, factor in found.device_factors().items():
        print(f"  {device}: its ops take {factor:.2f} times as long as predicted")
    rows = (
        (row.op, row.device, str(row.batch), *map(format_seconds, (row.predicted_s, row.measured_s, row.spread_s)))
        for row in found.disagreements()
    )
    header = ("op", "device", "batch", "predicted", "measured", "spread")
    print_table(header, rows, "furthest from the prediction")


def _print_table(table: CostTable, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(table.to_dict(), indent=1))
        return
    for noise in table.noise():
        print(noise)
