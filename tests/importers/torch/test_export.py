"""PyTorch modules as graphs: bytes, operations, constants, sharing, writes in place, modules, refusals."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit import Graph
from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.importers.common.parameters import Holdings
from rlinit.importers.torch import export
from rlinit.importers.torch.export import constant_nodes, export_program, from_program, from_torch
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn
    from torch.nn import functional as F


def edges(graph: Graph) -> set[tuple[str, str]]:
    """Return the edges by name."""
    return {(graph.names[u], graph.names[v]) for u, v in graph.edges}


def extra(graph: Graph, name: str, key: str) -> Any:
    """Return an extra attribute of an op, None where it has none."""
    return graph.extras[graph.index(name)].get(key)


def module_of(function: Any, **parts: Any) -> Any:
    """Return a module whose forward is a function of itself and its inputs."""

    class Made(nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(self, *args)

    made = Made()
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
            made.register_buffer(name, part)
        else:
            setattr(made, name, part)
    return made.eval()


def ones(*shape: int, **kwargs: Any) -> Any:
    """Return a tensor of ones."""
    return torch.ones(shape, **kwargs)


def test_a_small_network_in_full() -> None:
    """Every column of a network small enough to count by hand."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    graph = from_torch(net.eval(), (ones(2, 3, 8, 8),), name="tiny")
    assert graph.name == "tiny"
    assert graph.kinds == ("input", "conv2d", "batch_norm", "relu", "flatten.using_ints", "linear")
    assert graph.param_bytes.tolist() == [0, 4 * (108 + 4), 4 * 16, 0, 0, 4 * (2560 + 10)]
    assert graph.out_bytes.tolist() == [4 * 384, 4 * 512, 4 * 512, 4 * 512, 4 * 512, 4 * 20]
    assert graph.flops.tolist() == [0, 2 * 512 * 27, 0, 0, 0, 2 * 2 * 2560]
    assert graph.num_edges == graph.num_ops - 1 == graph.depth - 1
    assert extra(graph, "conv2d", "outputs") == [["float32", 2, 4, 8, 8]]
    assert [extra(graph, name, "module") for name in graph.names] == ["", "0", "1", "2", "3", "4"]
    assert extra(graph, "flatten", "view")
    assert not extra(graph, "relu", "view")


def test_the_batch_is_chosen() -> None:
    """Another batch size changes tensors and operations as if the example had it, and parameters not at all."""
    net = module_of(lambda self, x, y, t: self.lin(x) @ t + y, lin=nn.Linear(4, 4), t=ones(4, 4))
    args = (ones(2, 4), ones(2, 4), ones(4, 4))
    eight = (ones(8, 4), ones(8, 4), ones(4, 4))
    assert from_torch(net, args, batch=8) == from_torch(net, eight)
    assert from_torch(net, args, batch=2) == from_torch(net, args)
    for batch in (0, -1):
        with pytest.raises(InvalidGraph, match="batch"):
            from_torch(net, args, batch=batch)
    with pytest.raises(InvalidGraph, match="no argument"):
        from_torch(module_of(lambda self, x: x + 1), (torch.tensor(1.0),), batch=3)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "bool"])
def test_bytes_follow_the_type(dtype: str) -> None:
    """A tensor's bytes are its elements times its type's size; a comparison makes one byte an element."""
    graph = from_torch(module_of(lambda self, x: (x + x, x > 0)), (ones(3, 5, dtype=getattr(torch, dtype)),))
    size = torch.ones(1, dtype=getattr(torch, dtype)).element_size()
    assert graph.out_bytes.tolist() == [15 * size, 15 * size, 15]


def test_one_tensor_with_many_readers() -> None:
    """A tensor read by several ops, or twice by one, is one output with one edge to each reader."""
    graph = from_torch(module_of(lambda self, x: (torch.sin(x) * torch.sin(x), x + x)), (ones(4),))
    x = graph.names[0]
    assert edges(graph) == {(x, "sin"), (x, "sin_1"), ("sin", "mul"), ("sin_1", "mul"), (x, "add")}


def test_a_shared_parameter_counts_once() -> None:
    """Readers share one parameter, or form a group whose first op holds it; copies give each its own and no group."""
    lin = nn.Linear(4, 4)
    net = module_of(lambda self, x: self.b(torch.relu(self.a(x))), a=lin, b=lin)
    shared = from_torch(net, (ones(1, 4),))
    assert shared.total_param_bytes == 80
    assert [(one.size_bytes, one.readers) for one in shared.shared] == [(64, (1, 3)), (16, (1, 3))]
    assert shared.groups == ()
    graph = from_torch(net, (ones(1, 4),), sharing="colocate")
    assert graph.param_bytes.sum() == 80
    first, second = graph.index("linear"), graph.index("linear_1")
    assert graph.param_bytes[first] == 80
    assert graph.colocation[first] == graph.colocation[second] == 0
    assert graph.colocation[graph.index("relu")] == -1
    copies = from_torch(net, (ones(1, 4),), sharing="copy")
    assert copies.param_bytes[[first, second]].tolist() == [80, 80]
    assert copies.groups == ()
    with pytest.raises(ValueError, match="sharing"):
        from_torch(net, (ones(1, 4),), sharing="other")  # type: ignore[arg-type]


def test_shared_parameters_join_groups() -> None:
    """Ops linked by a chain of shared parameters share one group, whatever the order of the links."""
    holdings = Holdings("colocate")
    for op, tensor in [("a", "s"), ("b", "t"), ("c", "s"), ("d", "t"), ("e", "s"), ("e", "t"), ("f", "u"), ("a", "s")]:
        holdings.add(op, tensor, 8, is_parameter=True, is_trained=True)
    assert len({holdings.label(op) for op in "abcde"}) == 1
    assert holdings.label("a") is not None
    assert holdings.label("f") is None
    assert holdings.param_bytes == {"a": 8, "b": 8, "f": 8}


def test_a_mask_read_by_every_layer_is_copied() -> None:
    """Buffers and constants never force their readers together; each reader holds its own."""
    graph = from_torch(module_of(lambda self, x: torch.sin(x + self.mask) + self.mask, mask=ones(4)), (ones(4),))
    assert graph.groups == ()
    assert graph.param_bytes.sum() == graph.constant_bytes.sum() == 32


def test_constants_are_folded() -> None:
    """What no input reaches is held by its reader, with the folded tensor's bytes; a view counts its whole source."""

    def forward(self: Any, x: Any) -> Any:
        positions = torch.arange(4) * 2
        return x + self.table[positions] + F.linear(x, self.w.t())

    program = export_program(module_of(forward, table=ones(100, 4), w=nn.Parameter(ones(4, 4))), (ones(4, 4),))
    graph = from_program(program)
    assert {"input", "add.Tensor", "linear"} == set(graph.kinds)
    assert graph.num_ops == 4
    assert sorted(graph.param_bytes.tolist()) == [0, 0, 64, 64]
    folded = constant_nodes(program)
    calls = {node.name for node in program.graph.nodes if node.op == "call_function"}
    mapped = {name for i in range(graph.num_ops) for name in graph.extras[i]["nodes"]}
    assert folded == calls - mapped


def test_random_ops_are_not_constants() -> None:
    """Random numbers that depend on no input are ops without inputs."""
    graph = from_torch(module_of(lambda self, x: x + torch.rand(4)), (ones(4),))
    assert any(kind.startswith("rand") for kind in graph.kinds)


def test_outputs_of_one_op_are_one_tensor() -> None:
    """An op with several outputs has the bytes of those that are read; its getitems belong to it."""

    def forward(self: Any, x: Any) -> Any:
        values, _ = torch.topk(x, 2)
        a, b, _ = torch.split(x, [1, 2, 3], dim=1)
        return values, a * 2, b

    graph = from_torch(module_of(forward), (ones(5, 6),))
    assert graph.out_bytes[graph.index("topk")] == 4 * 10
    assert graph.out_bytes[graph.index("split_with_sizes")] == 4 * (5 + 10)
    assert not any("getitem" in name for name in graph.names)
    assert len(extra(graph, "split_with_sizes", "nodes")) >= 3
    assert extra(graph, "split_with_sizes", "view")


def programs_agree(module: Any, *args: Any) -> None:
    """Assert that the exported program computes what the module does and writes nothing in place."""
    program = export_program(module, args)
    assert not any(
        node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        for node in program.graph.nodes
    )
    with torch.no_grad():
        wanted, got = module(*args), program.module()(*args)
    for one, other in zip(torch.utils._pytree.tree_leaves(wanted), torch.utils._pytree.tree_leaves(got), strict=True):
        assert torch.equal(one, other)


def test_writes_in_place_become_data_flow() -> None:
    """Readers after a write depend on it, readers before it do not, and values are those of the module."""

    def forward(_: Any, x: Any) -> Any:
        y = x * 2
        before = y + 1
        y.relu_()
        return y, before, y + 3

    graph = from_torch(module_of(forward), (torch.randn(5),))
    assert ("relu_", "add_1") in edges(graph)
    assert ("mul", "add") in edges(graph)
    programs_agree(module_of(forward), torch.randn(5))


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: (lambda y: (torch.relu_(y), y[1:]))(x * 2),
        lambda _, x: (lambda y, v: (torch.relu_(y), v))(*(lambda y: (y, y[1:]))(x * 2)),  # type: ignore[arg-type]
        lambda _, x: (lambda y: (y[1:].fill_(3), y))(x * 2)[1],
        lambda _, x: (lambda y: (y.add_(1).mul_(2).sub_(0.5), y + y))(x.clone()),
        lambda _, x: (lambda y: F.dropout(y, training=False).relu_() + y)(x * 1),
        lambda _, x: (lambda y: y.reshape(1, -1).tanh_() + y)(x * 1),
        lambda _, x: (lambda y: (y.copy_(x + 1), y))(torch.zeros(4))[1],
        lambda _, x: (lambda y: (y.add_(torch.ones(4, dtype=torch.float64)), y))(x * 1)[1],
    ],
)
def test_every_sort_of_write(forward: Any) -> None:
    """Views, chains, aliases by no-ops, copies and mixed types: the values are the module's."""
    programs_agree(module_of(forward), torch.randn(4))


def test_module_granularity() -> None:
    """Each call of a leaf module is one op named by its path; the glue between stays; costs add up the same."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    block = Block()
    act = nn.Sigmoid()
    net = nn.Sequential(block, block, act, nn.Linear(8, 8), act).eval()
    program = export_program(net, (ones(2, 3, 8),))
    fine, coarse = from_program(program), from_program(program, granularity="module")
    leaves = [f"{block}.{part}" for block in "01" for part in ("norm", "up", "down")]
    assert [name for name in coarse.names if "." in name] == leaves
    assert [coarse.kinds[coarse.index(name)] for name in leaves[:3]] == ["LayerNorm", "Linear", "Linear"]
    assert coarse.flops.sum() == fine.flops.sum()
    assert coarse.total_param_bytes == fine.total_param_bytes
    assert {"gelu", "2", "3", "4"} <= set(coarse.names)
    assert {one.readers for one in coarse.shared} == {
        tuple(coarse.index(f"{at}.{part}") for at in "01") for part in ("norm", "up", "down")
    }
    nodes = [name for i in range(coarse.num_ops) for name in coarse.extras[i]["nodes"]]
    assert sorted(nodes) == sorted(name for i in range(fine.num_ops) for name in fine.extras[i]["nodes"])
    with pytest.raises(ValueError, match="granularity"):
        from_program(program, granularity="all")  # type: ignore[arg-type]


def test_a_model_too_large_for_this_machine() -> None:
    """A module on the meta device is imported without memory: here one layer of 300 billion parameters."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(10**5, 3 * 10**6), nn.ReLU())
    graph = from_torch(net, (torch.empty(4, 10**5, device="meta"),))
    assert graph.param_bytes.sum() == 4 * (3e11 + 3e6)
    assert graph.flops.sum() == 2 * 4 * 3e11


def test_attention_recurrence_and_control_flow_are_counted() -> None:
    """Operations of attention, LSTM and the larger branch of a condition, by hand."""
    q = ones(2, 8, 16, 64)
    graph = from_torch(module_of(lambda _, q: F.scaled_dot_product_attention(q, q, q)), (q,))
    assert graph.flops.sum() == 2 * 2 * 8 * 16 * 16 * 64 * 2
    graph = from_torch(nn.LSTM(4, 5).eval(), (ones(7, 2, 4),))
    assert graph.flops.sum() == 2 * 7 * 2 * 20 * 9

    cond = torch.cond  # torch reads the code below, and does not follow late imports

    def branch(self: Any, x: Any) -> Any:
        def deeper(x: Any) -> Any:
            return cond(x.min() > 0, lambda x: x @ x @ x, lambda x: x - 1, (x,))

        return cond(x.sum() > 0, deeper, lambda x: x @ x, (x,))

    graph = from_torch(module_of(branch), (ones(4, 4),))
    assert graph.flops.sum() == 2 * 2 * 64
    assert "cond" in graph.kinds[graph.num_ops - 1]


def test_dynamic_dimensions_are_chosen() -> None:
    """A program with dynamic sizes becomes the graph of the same module at the chosen sizes."""
    net = module_of(lambda self, x: self.lin(x).reshape(x.shape[0] * x.shape[1], 2, 2).sum(1), lin=nn.Linear(4, 4))
    dims = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("t", min=2)}
    program = torch.export.export(net, (ones(3, 5, 4),), dynamic_shapes=(({0: dims[0], 1: dims[1]},),))
    name = program.graph_signature.user_inputs[0]
    graph = from_program(program, batch=7, dims={f"{name}[1]": 9})
    fixed = from_torch(net, (ones(7, 9, 4),))
    assert graph.out_bytes.tolist() == fixed.out_bytes.tolist()
    assert graph.flops.tolist() == fixed.flops.tolist()
    # torch writes a least size of 2 where none was given, and runs 1 as well.
    assert from_program(program, dims={f"{name}[1]": 9}).out_bytes[0] == 4 * 1 * 9 * 4
    for dim, least in ((torch.export.Dim.DYNAMIC, 1), (torch.export.Dim("n"), 1), (torch.export.Dim("m", min=3), 3)):
        open_batch = torch.export.export(nn.Linear(4, 4), (ones(5, 4),), dynamic_shapes=({0: dim},))
        assert from_program(open_batch).out_bytes[0] == 4 * 4 * least
        assert from_program(open_batch, batch=4).out_bytes[0] == 4 * 4 * 4
        with pytest.raises(InvalidGraph, match="batch is 0"):
            from_program(open_batch, batch=0)
    with pytest.raises(InvalidGraph, match="allows"):
        from_program(open_batch, batch=2)
    with pytest.raises(InvalidGraph, match=r"choose a value.*\[1\]"):
        from_program(program, batch=7)
    with pytest.raises(InvalidGraph, match="allows"):
        from_program(program, batch=65, dims={f"{name}[1]": 9})
    with pytest.raises(InvalidGraph, match="'other'"):
        from_program(program, dims={"other": 9})
    with pytest.raises(InvalidGraph, match="exported for batch size 7"):
        from_program(export_program(net, (ones(7, 9, 4),)), batch=3)


def test_sizes_that_depend_on_data_are_refused() -> None:
    """The message names the node."""
    with pytest.raises(InvalidGraph, match=r"'nonzero'.*depends on data"):
        from_torch(module_of(lambda _, x: x.nonzero() + 1), (ones(4),))
    graph = from_torch(module_of(lambda _, x: x * x.sum().item()), (ones(4),))
    assert graph.num_ops >= 4


def test_writes_after_an_input_with_a_name_of_python() -> None:
    """Networks whose input is called as a builtin (that of nn.Sequential is "input") may write in place."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Dropout(0.5, inplace=True))
    assert from_torch(net.eval(), (ones(2, 4),)).kinds[:3] == ("input", "linear", "relu")
    assert from_torch(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(), (ones(2, 4),)).names[0] == "input"


def test_what_cannot_be_traced_is_told_with_its_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A branch on data, wrong arguments and an error in forward name the line of the model and the alternatives."""

    def branch(_: Any, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(InvalidGraph, match=r"test_export\.py:\d+ \(if x\.sum\(\) > 0:\).*torch\.cond"):
        from_torch(module_of(branch), (ones(4),))
    told = capfd.readouterr()
    assert not told.out + told.err, "torch.export prints the program that it has half made"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with pytest.raises(InvalidGraph, match="expected one of 'trace', 'strict'"):
        from_torch(module_of(lambda _, x: x + 1), (ones(4),), method="jit")  # type: ignore[arg-type]
    with pytest.raises(InvalidGraph, match="Made cannot be traced"):
        from_torch(module_of(lambda _, x: x @ ones(7, 7)), (ones(4, 4),))
    with pytest.raises(InvalidGraph, match=r"expected a torch\.nn\.Module"):
        from_torch(lambda x: x, (ones(4),))  # type: ignore[arg-type]


def test_nothing_to_plan() -> None:
    """A module whose outputs depend on no input, or that only hands its input on, is refused."""
    for forward in (lambda self, x: self.w * 2, lambda _, x: x):
        with pytest.raises(InvalidGraph, match="nothing to plan"):
            from_torch(module_of(forward, w=ones(4)), (ones(4),))


def test_custom_ops_are_generic_ops() -> None:
    """An op torch has no formula for has bytes and no operations."""
    with torch.library._scoped_library("rlinit_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        torch.library.register_fake("rlinit_test::twice", lambda x: torch.empty_like(x), lib=library)
        graph = from_torch(module_of(lambda _, x: torch.ops.rlinit_test.twice(x)), (ones(4),))
    assert graph.kinds[1] == "rlinit_test.twice"
    assert graph.out_bytes[1] == 16
    assert graph.flops[1] == 0


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is missing the error names the extra."""

    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match=r"pip install rlinit\[torch\]"):
        export.import_torch()


def run_by_ops(program: Any, graph: Graph, *args: Any) -> list[Any]:
    """Run a program op by op, last ready op first, each from its predecessors' values and what it holds alone."""
    state = {**program.state_dict, **program.constants}
    nodes = {node.name: node for node in program.graph.nodes}
    shared: dict[Any, Any] = {}
    inputs = dict(zip(program.graph_signature.user_inputs, args, strict=False))  # after tensors, flags
    for spec in program.graph_signature.input_specs:
        if spec.target is not None:
            shared[nodes[spec.arg.name]] = state[spec.target]
    constants = constant_nodes(program)
    for node in program.graph.nodes:
        if node.name in constants and all(source in shared for source in node.all_input_nodes):
            shared[node] = call(node, shared)
    made: dict[int, dict[Any, Any]] = {}
    waiting = set(range(graph.num_ops))
    while waiting:
        before = {v: {int(u) for u, w in graph.edges if w == v} for v in waiting}
        v = max(v for v in waiting if before[v] <= made.keys())
        waiting.remove(v)
        values = dict(shared)
        for u in before[v]:
            values.update(made[u])
        own: dict[Any, Any] = {}
        for name in graph.extras[v]["nodes"]:
            node = nodes[name]
            own[node] = inputs[name] if node.op == "placeholder" else call(node, {**values, **own})
        made[v] = own
    values = {node: value for part in made.values() for node, value in part.items()} | shared
    return [values[node] for node in program.graph.output_node().args[0]]


def call(node: Any, values: Any) -> Any:
    """Return what a node returns, from the values of other nodes; a KeyError for a value that is not there."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: values[source])
    return node.target(*args, **kwargs)


@st.composite
def networks(draw: st.DrawFn) -> Any:
    """Return a module of random layers with skips, writes in place and sharing, on (batch, 4) inputs."""
    steps = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12))
    shared = nn.Linear(4, 4)
    layers = nn.ModuleList([shared if kind == 1 else nn.Linear(4, 4) for kind, _, _ in steps])

    def forward(self: Any, x: Any) -> Any:
        made = [x, x * 2]
        for layer, (kind, first, second) in zip(self.layers, steps, strict=True):
            a, b = made[first % len(made)], made[second % len(made)]
            if kind <= 1:
                made.append(layer(a))
            elif kind == 2:
                made.append(torch.relu(a))
            elif kind == 3 and a is not x:
                made.append(a.relu_())
            elif kind == 4:
                made.append(a.t().contiguous().t() + b)
            elif kind == 5:
                made.append(torch.cat(torch.split(a, 2, 1)[::-1], 1))
            else:
                made.append(a * b + 1)
        return made[-1], made[len(made) // 2] + 1

    return module_of(forward, layers=layers)


@settings(max_examples=12, deadline=None)
@given(networks())
def test_random_networks(net: Any) -> None:
    """Costs add up over granularities, each parameter counts once, ops read only earlier ops, values are kept."""
    x = torch.randn(3, 4)
    program = export_program(net, (x,))
    graph = from_program(program)
    coarse = from_program(program, granularity="module")
    assert np.isclose(graph.flops.sum(), coarse.flops.sum())
    used = {
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name.startswith("p_") and node.users
    }
    placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    assert graph.total_param_bytes == sum(placeholders[name].nbytes for name in used)
    assert coarse.total_param_bytes == graph.total_param_bytes
    assert all(u < v for u, v in graph.edges)
    with torch.no_grad():
        wanted = net(x.clone())
        for got in (
            program.module()(x.clone()),
            run_by_ops(program, graph, x.clone()),
            run_by_ops(program, coarse, x.clone()),
        ):
            assert all(torch.allclose(one, other) for one, other in zip(wanted, got, strict=True))


def test_a_transformer_runs_op_by_op() -> None:
    """A small GPT-2 run op by op, from what the graph says each op reads, gives the module's logits."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    try:
        for op in ("nms", "qnms"):  # torchvision, if there, looks for ops that a wheel for other hardware cannot load
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
        net = transformers.GPT2LMHeadModel(config).eval()
    except (ImportError, RuntimeError) as problem:  # torchvision without its operators
        pytest.skip(f"transformers cannot be imported: {problem}")
    words = torch.randint(50, (2, 8))
    program = export_program(net, (words,), {"use_cache": False})
    graph = from_program(program)
    coarse = from_program(program, granularity="module")
    assert len(graph.shared) == 1
    assert graph.param_bytes.sum() >= 4 * (50 + 8) * 16
    with torch.no_grad():
        wanted = net(words, use_cache=False).logits
        for made in (graph, coarse):
            assert torch.allclose(run_by_ops(program, made, words)[0], wanted, atol=1e-6)
