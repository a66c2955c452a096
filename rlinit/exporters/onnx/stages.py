"""Plans as ONNX files: one for each stage, or each run of ops on one device, that together do what the model does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidPlan, imported
from rlinit.exporters.onnx.external_data import loaded, save_onnx
from rlinit.exporters.onnx.node_mapping import OnnxFit, fit_onnx, renamed, tensor_type
from rlinit.exporters.op_devices import op_devices, op_stages, quotient_order
from rlinit.files import read_json, write_json
from rlinit.graph import Graph
from rlinit.importers.onnx.reader import node_reads
from rlinit.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class OnnxStage:
    """One part of a model.

    Parameters
    ----------
    stage
        Stage of the plan, or None for a placement.
    device
        Where it runs, by the plan's name.
    model
        The part as an ONNX `ModelProto`, whose inputs and outputs are the boundary tensors.
    takes, gives
        Names of its inputs and outputs: as in the whole model.
    ops
        Ops it runs, in order.
    """

    stage: int | None
    device: str
    model: Any
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    ops: tuple[str, ...]


def to_onnx_stages(plan: Plan, graph: Graph, model: Any, folder: str | Path) -> list[Path]:
    """Write the parts of a model as ``part_0.onnx``, ``part_1.onnx``, ..., in the order in which they run.

    ``parts.json`` says what each takes, gives, runs and where; `run_onnx_stages` reads it. Weights beyond 1 GiB go to
    a file beside the part. Files of an earlier export with more parts are left alone.

    Parameters
    ----------
    plan, graph, model
        As for `onnx_stages`.
    folder
        Where to write; it is made if it is not there.

    Returns
    -------
    list of Path
        The ONNX files.

    Raises
    ------
    InvalidPlan, InvalidGraph, BackendUnavailable
        As for `onnx_stages`.
    """
    target = Path(folder)
    files, rows = [], []
    fit = fit_onnx(plan, graph, model)
    parts = _Parts(plan, graph, fit)
    target.mkdir(parents=True, exist_ok=True)
    for at, part in enumerate(parts.built()):
        path = target / f"part_{at}.onnx"
        save_onnx(part.model, path)
        files.append(path)
        rows.append(
            {
                "file": path.name,
                "stage": part.stage,
                "device": part.device,
                "takes": list(part.takes),
                "gives": list(part.gives),
                "ops": list(part.ops),
            }
        )
    proto = fit.model.graph
    inputs = [value.name for value in proto.input if value.name not in fit.stored]
    manifest = {"format": "rlinit-onnx-parts", "version": 1, "graph": graph.name}
    manifest |= {"graph_fingerprint": plan.graph_fingerprint, "inputs": inputs}
    write_json(target / "parts.json", {**manifest, "outputs": [value.name for value in proto.output], "parts": rows})
    return files


def onnx_stages(plan: Plan, graph: Graph, model: Any) -> list[OnnxStage]:
    """Cut an ONNX model into one model for each stage of a plan, or for each run of ops on one device.

    Parts are in an order in which tensors are made before they are taken; a part takes tensors from any part before it,
    and inputs of the model. Weights are kept, in each part that reads them. What the model computes from weights or
    shapes alone is computed where it is read. Shapes are those the graph was imported with: a dynamic batch becomes
    the chosen one. Stages without ops have no part.

    For placements, ops of one device are one part as long as no data between them passes through another device, so
    that parts never wait for each other in a circle.

    Parameters
    ----------
    plan
        A plan with a schedule in which each op runs on one device.
    graph
        What it was made for, as `rlinit.load_graph` or `from_onnx` gives it.
    model
        The ``.onnx`` file that the graph is of, or the `onnx.ModelProto`.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph or the graph not for the model, an op is split over devices, or stages read each
        other in a circle; the message names the node.
    InvalidGraph
        The model cannot be read.
    BackendUnavailable
        onnx is not installed.
    """
    return list(_Parts(plan, graph, fit_onnx(plan, graph, model)).built())


def run_onnx_stages(
    folder: str | Path,
    feeds: Mapping[str, Any],
    *,
    providers: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Run the parts that `to_onnx_stages` wrote one after the other in onnxruntime, and return the model's outputs.

    Parameters
    ----------
    folder
        Where they are.
    feeds
        Input of the model -> array.
    providers
        device of the plan -> execution providers of onnxruntime; ``["CPUExecutionProvider"]`` for others.

    Raises
    ------
    InvalidPlan
        The folder has no readable ``parts.json``, or `feeds` lacks an input.
    BackendUnavailable
        onnxruntime is not installed.
    """
    return OnnxParts(folder, providers).run(feeds)


class OnnxParts:
    """The parts that `to_onnx_stages` wrote, each with a session of onnxruntime, to be run as often as wanted.

    Parameters
    ----------
    folder, providers
        As for `run_onnx_stages`; the folder may be deleted afterwards.

    Raises
    ------
    InvalidPlan, BackendUnavailable
        As for `run_onnx_stages`.
    """

    def __init__(self, folder: str | Path, providers: Mapping[str, Sequence[Any]] | None = None) -> None:
        onnxruntime = imported("onnxruntime", "running ONNX parts", "onnxruntime")
        self._outputs, self._parts = _manifest(Path(folder) / "parts.json")
        self._opened = [
            onnxruntime.InferenceSession(
                str(Path(folder) / part["file"]),
                providers=list((providers or {}).get(part["device"], ["CPUExecutionProvider"])),
            )
            for part in self._parts
        ]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's outputs by name, from its inputs by name; tensors are dropped after their last reader.

        Raises
        ------
        InvalidPlan
            `feeds` lacks an input.
        """
        last_read = {name: at for at, part in enumerate(self._parts) for name in part["takes"]}
        values = dict(feeds)
        for at, (part, session) in enumerate(zip(self._parts, self._opened, strict=True)):
            missing = next((name for name in part["takes"] if name not in values), None)
            if missing is not None:
                raise InvalidPlan(f"{part['file']} takes {missing!r}, which is not among the inputs given")
            results = session.run(list(part["gives"]), {name: values[name] for name in part["takes"]})
            values.update(zip(part["gives"], results, strict=True))
            for name in [name for name in part["takes"] if last_read[name] == at and name not in self._outputs]:
                del values[name]
        return {name: values[name] for name in self._outputs}


def _manifest(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of the model's outputs, and what is known of each part."""
    data = read_json(path, "parts", InvalidPlan)
    if any(Path(part["file"]).name != part["file"] for part in data["parts"]):
        raise InvalidPlan(f"{path} is not a list of parts in its own folder that to_onnx_stages wrote")
    return data["outputs"], data["parts"]


class _Parts:
    """Deals the nodes of a model to parts and builds these one by one."""

    def __init__(self, plan: Plan, graph: Graph, fit: OnnxFit) -> None:
        self._plan, self._fit = plan, fit
        self._devices = op_devices(plan, graph)
        keys: dict[str, tuple[int, str]]
        if plan.objective in ("pipeline", "memory"):
            keys = {op: (stage, "") for op, stage in op_stages(plan, graph).items()}
        else:
            keys = self._runs(graph)
        op2key = {op: keys[op] for op in fit.op2places}  # inputs of the model are no part of a part
        self._members: dict[tuple[int, str], list[str]] = {}
        for op, key in op2key.items():
            self._members.setdefault(key, []).append(op)
        self._order = quotient_order(graph, op2key, op2key.values())
        home = {key: at for at, key in enumerate(self._order)}
        self._op2part = {op: home[key] for op, key in op2key.items()}
        self._readers: dict[str, set[int]] = {}
        for op in fit.op2places:
            for _, node in fit.nodes_of(op):
                for name in self._needs(node):
                    self._readers.setdefault(name, set()).add(self._op2part[op])
        self._results = dict.fromkeys(value.name for value in fit.model.graph.output)
        self._stored = {tensor.name: tensor for tensor in fit.model.graph.initializer}
        self._sparse = {sparse.values.name: sparse for sparse in fit.model.graph.sparse_initializer}
        self._notes = {note.tensor_name: note for note in fit.model.graph.quantization_annotation}

    def _runs(self, graph: Graph) -> dict[str, tuple[int, str]]:
        """Return op -> (changes of device on the way to it at most, device).

        Along an edge the first number grows if the device changes, and does not shrink if it does not, so that parts
        depend on those of smaller numbers alone.
        """
        changes: dict[str, int] = {}
        for v in graph.order.tolist():
            name, most = graph.names[v], 0
            for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist():
                other = graph.names[u]
                if other in self._fit.op2places:
                    most = max(most, changes[other] + (self._devices[other] != self._devices[name]))
            changes[name] = most
        return {op: (number, self._devices[op]) for op, number in changes.items()}

    def _needs(self, node: Any) -> list[str]:
        """Return the tensors of ops and inputs that a node reads, directly or through what is folded."""
        return [name for name in node_reads(node) if name in self._fit.types]

    def built(self) -> Iterator[OnnxStage]:
        """Yield the parts in order."""
        for at, key in enumerate(self._order):
            yield self._build(at, key)

    def _build(self, at: int, key: tuple[int, str]) -> OnnxStage:
        fit, last = self._fit, at == len(self._order) - 1
        ops = self._members[key]
        writer = _Writer(fit, self._stored, self._sparse)
        nodes = [named for op in ops for named in fit.nodes_of(op)]
        made = {tensor for _, node in nodes for tensor in node.output if tensor}
        for name, node in nodes:
            writer.add(name, node, made)
        gives = [name for name in writer.made if self._leaves(name, at)]
        if last:
            constants = fit.maker.keys() | fit.stored
            fixed = [name for name in self._results if name in constants and name not in fit.types]
            for name in fixed:
                writer.constant(name)
            gives += fixed
        if not gives:  # a model needs an output: results that nothing reads
            gives = [name for name in writer.made if name in fit.types and name not in self._readers]
        device = self._devices[ops[0]]
        stage = key[0] if self._plan.objective in ("pipeline", "memory") else None
        model = self._model(writer, gives, f"{fit.model.graph.name or 'model'}_part_{at}")
        for name, value in (("device", device), ("stage", stage), ("graph_fingerprint", self._plan.graph_fingerprint)):
            if value is not None:
                model.metadata_props.add(key=f"rlinit.{name}", value=str(value))
        return OnnxStage(stage, device, model, tuple(writer.takes), tuple(gives), tuple(ops))

    def _leaves(self, name: str, at: int) -> bool:
        return name in self._results or any(reader != at for reader in self._readers.get(name, ()))

    def _model(self, writer: _Writer, gives: Sequence[str], name: str) -> Any:
        import onnx

        fit = self._fit
        model = onnx.ModelProto(ir_version=max(fit.model.ir_version, 4), producer_name="rlinit")
        model.opset_import.extend(fit.model.opset_import)
        graph = model.graph
        graph.name = name
        graph.node.extend(writer.nodes)
        graph.initializer.extend(writer.initializers)
        graph.sparse_initializer.extend(writer.sparse)
        graph.input.extend(tensor_type(tensor, fit.types) for tensor in writer.takes)
        described = {value.name: value for value in fit.model.graph.output}
        constants = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in writer.initializers}
        types = {**constants, **fit.types}
        for tensor in gives:
            graph.output.append(tensor_type(tensor, types) if tensor in types else described[tensor])
        given = set(gives)
        inside = [tensor for tensor in writer.made if tensor in fit.types and tensor not in given]
        graph.value_info.extend(tensor_type(tensor, fit.types) for tensor in inside)
        kept = {*writer.takes, *writer.made, *writer.held}
        graph.quantization_annotation.extend(note for tensor, note in self._notes.items() if tensor in kept)
        return model


class _Writer:
    """Collects the nodes of a part, with the constants they need."""

    def __init__(self, fit: OnnxFit, stored: Mapping[str, Any], sparse: Mapping[str, Any]) -> None:
        self._fit, self._stored, self._sparse = fit, stored, sparse
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.sparse: list[Any] = []
        self.takes: list[str] = []
        self.made: list[str] = []
        self.held: set[str] = set()

    def add(self, name: str, node: Any, made: set[str]) -> None:
        """Add a node of an op under a name; `made` are the tensors that ops of this part make."""
        for tensor in node_reads(node):
            if tensor in self._fit.types:
                if tensor not in made and tensor not in self.held:
                    self.held.add(tensor)
                    self.takes.append(tensor)
            else:
                self.constant(tensor)
        self.nodes.append(renamed(node, name))
        self.made += [tensor for tensor in node.output if tensor]

    def constant(self, name: str) -> None:
        """Add what gives a constant, each thing once, what it is computed from first."""
        todo = [name]
        while todo:
            tensor = todo[-1]
            if tensor in self.held:
                todo.pop()
                continue
            if tensor in self._fit.stored:
                self._hold(tensor)
                continue
            node = self._fit.model.graph.node[self._fit.maker[tensor]]
            known = self._known(node)
            if known is not None:
                self.initializers.append(known)
            else:
                waiting = [read for read in node_reads(node) if read not in self.held]
                if waiting:
                    todo += waiting
                    continue
                self.nodes.append(node)
            self.held.update(made for made in node.output if made)

    def _hold(self, tensor: str) -> None:
        self.held.add(tensor)
        if tensor in self._sparse:
            self.sparse.append(self._sparse[tensor])
        else:
            self.initializers.append(loaded(self._stored[tensor], self._fit.source))

    def _known(self, node: Any) -> Any:
        """Return the value of a node that reads the shape of an op's output, None for other nodes."""
        import onnx

        if node.op_type not in ("Shape", "Size") or node.domain not in ("", "ai.onnx"):
            return None
        if node.input[0] not in self._fit.types:
            return None
        sizes = self._fit.types[node.input[0]][1]
        if node.op_type == "Size":
            count = 1
            for size in sizes:
                count *= size
            return onnx.helper.make_tensor(node.output[0], onnx.TensorProto.INT64, [], [count])
        given = {attribute.name: attribute.i for attribute in node.attribute}
        part = sizes[given.get("start", 0) : given.get("end", len(sizes))]
        return onnx.helper.make_tensor(node.output[0], onnx.TensorProto.INT64, [len(part)], list(part))
