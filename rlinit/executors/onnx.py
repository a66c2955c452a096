"""Plans of ONNX models run by onnxruntime: a session for each stage, or each run of ops on one device."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from rlinit.checker.compatibility import figures_of
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.compatibility import require_totals
from rlinit.executors.protocol import Execution
from rlinit.exporters.onnx.external_data import open_onnx
from rlinit.exporters.onnx.stages import OnnxParts, to_onnx_stages
from rlinit.graph import Graph
from rlinit.importers.common.parameters import Sharing
from rlinit.importers.common.precision import dtype_of
from rlinit.importers.onnx.reader import from_onnx
from rlinit.plan import Plan


class OnnxExecutor:
    """Runs plans on ONNX models, part after part in this process."""

    def execute(
        self,
        plan: Plan,
        model: Any,
        inputs: Sequence[Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> Execution:
        """Run a plan once; see `Executor.execute`.

        Parameters
        ----------
        plan, graph
            The plan, and the graph it was made for; without it, the model is imported again for these inputs.
        model
            The ``.onnx`` file, or the `onnx.ModelProto`.
        inputs, kwargs
            Arrays by the order of the model's inputs, and by their names.
        devices
            Device name of the plan -> "cpu" or "cuda:N"; others run on the CPU.

        Returns
        -------
        Execution
            Its outputs are arrays by name.

        Raises
        ------
        InvalidPlan
            The plan is not for this model, an input is missing, or a device has another form.
        ExecutionFailure
            onnxruntime failed; the message is its own.
        BackendUnavailable
            onnx or onnxruntime is not installed.
        """
        names = _input_names(model)
        if len(inputs) > len(names):
            raise InvalidPlan(f"there are {len(inputs)} inputs; the model takes {', '.join(names)}")
        feeds = dict(zip(names, inputs, strict=False)) | dict(kwargs or {})
        missing = [name for name in names if name not in feeds]
        if missing or len(feeds) > len(names):
            raise InvalidPlan(f"inputs are {', '.join(sorted(feeds)) or 'none'}; the model takes {', '.join(names)}")
        places = {name: _providers(name, place) for name, place in (devices or {}).items()}
        if graph is None:
            graph = onnx_graph(plan, model, feeds)
            plan = replace(plan, graph_fingerprint=graph.fingerprint())  # but for groups and times it is the plan's
        with tempfile.TemporaryDirectory() as folder:
            to_onnx_stages(plan, graph, model, folder)
            parts = OnnxParts(folder, places)
        started = time.perf_counter()
        try:
            return Execution(parts.run(feeds), time.perf_counter() - started)
        except RuntimeError as problem:
            raise ExecutionFailure(f"onnxruntime failed: {problem}") from problem


def onnx_graph(plan: Plan, model: Any, feeds: Mapping[str, Any]) -> Graph:
    """Return the graph that a plan was made for, but for groups and times, with sizes of inputs as given.

    Parameters
    ----------
    plan
        Says the types of numbers and the fingerprint.
    model
        As for `OnnxExecutor.execute`.
    feeds
        Array of each input of the model.

    Raises
    ------
    InvalidPlan
        The plan has other ops, edges or parameters, whichever way parameters are shared.
    InvalidGraph, BackendUnavailable
        The model cannot be read.
    """
    proto, _ = open_onnx(model)
    chosen: Any = plan.provenance.get("dtype")
    dims: dict[str, int] = {}
    for value in proto.graph.input:
        for at, size in enumerate(value.type.tensor_type.shape.dim):
            if value.name in feeds and not size.HasField("dim_value"):
                dims[f"{value.name}[{at}]"] = int(feeds[value.name].shape[at])
    batch = next((size for name, size in dims.items() if name.endswith("[0]")), None)
    others = {name: size for name, size in dims.items() if not name.endswith("[0]")}
    graphs = [
        from_onnx(proto, batch=batch, dims=others, sharing=sharing, dtype=dtype_of(chosen), name=plan.graph)
        for sharing in get_args(Sharing)
    ]
    for graph in graphs:
        if graph.fingerprint() == plan.graph_fingerprint:
            return graph
    advice = f"inputs have the sizes {others | {'batch': batch}}; or give the graph that it was made for"
    if not plan.graph_figures:
        raise InvalidPlan(f"the plan is not for the model with inputs of these sizes: {advice}")
    require_totals(plan, graphs, advice)
    held = plan.graph_figures.get("param_bytes")
    return next((graph for graph in graphs if figures_of(graph)["param_bytes"] == held), graphs[0])


def _input_names(model: Any) -> list[str]:
    proto, _ = open_onnx(model)
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in stored]


def _providers(name: str, place: str) -> list[Any]:
    kind, _, number = place.partition(":")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    if kind == "cuda" and (number or "0").isdecimal():
        return [("CUDAExecutionProvider", {"device_id": int(number or 0)}), "CPUExecutionProvider"]
    raise InvalidPlan(f"device {name!r} is {place!r} for onnxruntime; expected 'cpu' or 'cuda:N'")
