#!/usr/bin/env python3
"""Check a plan, and the proof of its bound, with nothing but the standard library: shares no code with rlinit.

    python tools/check.py plan.json graph.json hardware.json [certificate.json]

runs this file, which may as well be run itself, wherever it is copied to. It reads the four files as they are written,
takes every decimal in them as the exact rational number it denotes, and answers on one line:

    VERIFIED (exact)       the schedule is feasible, has its value, and the certificate proves its bound
    VERIFIED (exact) ...: infeasible  the certificate proves that there is no schedule
    VERIFIED (value only)  the schedule is feasible and has its value; nothing here proves the bound
    REFUTED                what is wrong

VERIFIED names what the plan alone says of the problem. Arithmetic is exact. The numbers in a plan were rounded to
floats when they were computed, so a value or figure may differ from the exact one by 1e-9 of it, a bound may be proven
up to 1e-9 of it, and a schedule's times are computed anew from the order in which it runs batches and transfers. Times
derived from operations, bytes and rates are exact quotients here.

A layout of a language model that serves, as `rlinit serve --out` writes it, is checked against its fleet alone:

    python tools/check.py layout.json rates.json

Its flow keeps to spans, rates and links and is conserved. Of two pools, which read prompts and make answers, paths make
up the flow, and links carry the vectors and caches of what goes along each. Its bound is proven by `coverage` (every
layer is on devices that pass the rate together; of the cost model, with passes of each length waiting for devices), by
`prices` (whole devices that pass it cost more than all do), or by networks apart. Its status, flow and bound are
computed or proven; spans are chosen; partial is asked; weights, baselines, message, and paths where there is one pool,
are unread.

Kinds of proof, each of "no schedule has a value below this":

zero        no value is below 0
op          some op takes as long on every device it may run on
load        multipliers y_d >= 0 that sum to 1: max_d load_d >= sum_d y_d load_d >= sum_v min_d y_d time(v, d), where
            for throughput time(v, d) is that of all shards in batches of the best size
packing     a dual feasible function gives the ops, on their fastest devices, more than k devices hold
quantum     one of the above, raised to the next multiple of what divides every time exactly
states      (stages) every set of ops that whole stages below the threshold can reach is listed by number of stages,
            and the set of all ops is not among them; ops without weight are joined to a neighbour that some best
            schedule has them with (`absorbed`)
area        (stages of several devices) all devices together are busy for the best options of all ops, where seconds and
            devices of a kind may have any weight
groups      (stages of several devices) rows of stages below the threshold, from the last one on, are described by the
            ops that are left, devices of each kind and replicas; fewer of all are no worse, for more devices are left
            then and no more micro-batches in flight; options of ops are chosen exactly. No row is whole. Without a
            threshold, none that fits is: there is no schedule
tree        (latency) schedules below the threshold, split by the device of an op and by which of two ops is first; what
            each case leaves open is empty, or contradicts a sum of rows with multipliers >= 0. First may come lags:
            the least time between two ops for each pair of their devices, by trees over the ops between them alone
clauses     (latency) each clause over starts, devices and orders of ops holds by those before it: where all its
            literals are false, steps of time windows, edges, orders of two ops and work between two times, and clauses
            of which one literal is left, come to nothing. The last clause is empty
places      no way to put ops on devices, all of which are tried, respects memories, groups, forbidden devices and links
room        an op, with those that must be beside it, may run nowhere; or multipliers y_d >= 0 that sum to 1 give
            sum_v min_d y_d bytes(v) / memory_d > 1. Proves that there is no schedule, as the others do of a plan that
            is "infeasible" where they reach more than all ops on every device and all transfers take together.
            Of a training pipeline `states` go from the last stage on, by the bytes of `Trained`

Stages of several devices are those of `Groups`: its docstrings say what they take, and which degrees there are.

Who says that a field is true: *asked*, the user does, for it is the question (where it is in the plan, the answer names
it); *chosen*, it is the schedule, any that breaks no rule; *computed* here, and refused where it differs; *proven*, by
the certificate, else the answer says "value only"; *fixed*, refused unless it is as said; *unread*, it says nothing of
schedule, value or bound. A field that is not listed is refused.

plan            objective inputs transfer_rule resident groups  asked
                chunks contiguous training  asked of a plan without a schedule; fixed of others: 1, true, none
                assignment batches transfers  chosen: where ops run, in which order; batches in `shards` of `start_s`
                stages  chosen: devices, replicas, degrees, variants and shares of a batch; computed: their figures
                start_s devices values shard_inputs  computed; the shard by its definition (`shard_of`)
                status  computed: "optimal" where the bounds reach the values, else "feasible"; proven: "infeasible",
                        of a plan without a schedule
                bounds  proven
                format version stage_orders  fixed: this, 1, none
                graph_fingerprint hardware_fingerprint  fixed: as in the certificate; the files given are what counts
                graph hardware bound_source method message notes history phase_s provenance graph_figures modules
                baselines baseline_notes chunk_order  unread: the order is one of several chunks
graph           ops edges  asked
                format version  fixed: this one, 1
                name int_names  unread
op              name op param_bytes shared out_bytes flops time_s colocate forbidden outputs view precision menu  asked
                module scopes node  asked of training pipelines, where they say what may be computed again
                backward_of  fixed for stages: none, but in training
                backward_time_s nodes axes operands constant_bytes holds tensors label note  unread
hardware        device link bandwidth latency_s  asked
                sharing  fixed for pipelines: none
                format  fixed: this one
                name  unread
device          name kind memory_bytes cache_bytes reserve_bytes flops_per_s bytes_per_s launch_s io_bandwidth
                batch_sizes slowdown efficiency host_s node  asked
                shares cost_per_hour  unread
link            from to bandwidth latency_s one_way  asked
certificate     levels  proven: a number of it is a witness, of which only what follows counts
                format version graph_fingerprint hardware_fingerprint  fixed: this one, 1, those of the plan
                trusted  unread: shown as the writer's word where a level has no proof
"""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import copy as shallow
from fractions import Fraction
from heapq import heappop, heappush
from itertools import accumulate, chain, pairwise, product
from operator import le, lt, mul
from typing import Any, NamedTuple, NoReturn

ROUNDING = Fraction(1, 10**9)
"""Relative difference of a number in a plan from the exact one that is put down to floats."""

CAPACITY = 1 + Fraction(1, 10**12)
"""Room that a capacity has for sums of bytes that are not whole."""

OPTIMAL = Fraction(1, 10**6)
"""Gap up to which a plan calls itself optimal."""

MOST_SETS = 200_000
"""Sets of ops that a proof by states may list, and ways to put ops on devices that one may look at."""

MOST_SPREADS = 256
"""Ways to spread the shards of an op over devices that are looked at one by one."""

MOST_PAIRS = 40_000_000
"""Pairs of sets that a proof by states may compare."""

MOST_VECTORS = 256
"""Numbers of devices of each class for which it is kept what they reach."""

FEW = 20
"""Sets that are sooner compared than told apart by the tensors live in them."""

WHOLE_BITS = 64
"""Bits of the threshold where times are rounded down to whole numbers."""

QUANTUM_BITS = 4096
"""Bits of the scale in which times are whole, beyond which no quantum is looked for."""

MOST_PASSES = 20
"""Passes over heads, tails and orders in one case of a tree."""

MOST_HEADS = 50
"""Heads from which a device's load is added up, beside a remainder."""

ORDERED_OPS = 200
"""Ops up to which the orders of pairs are looked at."""

MOST_DIGITS = 48
"""Characters of a number in a graph or hardware, about twice those of any float."""

MOST_LETTERS = 400
"""Characters of a multiplier of a load, of which there may be hundreds to add."""

MOST_BITS = 1 << 32
"""Bits of all numbers of a problem of stages together, in units in which they are whole."""

LARGEST = 10**30
"""Largest number in a graph or hardware."""

MOST_STEPS = 100_000
"""Steps of the grid on which knapsacks of serving devices are solved."""

PRICE_SCALE = 10**15
"""What all devices cost together, where their shares are rounded down to whole numbers."""

PASS_SCALE = 10**24
"""Parts of a second, of a token a second, and of what multipliers make of these, rounded to whole numbers."""

MOST_ROOM = 10**100
"""Sequences under way where caches are not known."""

LEAST_RATE = Fraction(1, 10**60)
"""Tokens a second that stand for none."""

MOST_SHARDS, FEW_OPS = (16, 4), 31_250
"""Shards where a device takes batches of any size: up to so many ops times devices, and beyond."""

MOST_STAGES = 8_000_000
"""Stages of several devices, of any degree, that a proof may look at."""

MOST_MIXES = 8_000
"""Numbers of replicas of each kind that a stage on several kinds may have."""

MOST_SUMS = 20_000
"""Sums of seconds and bytes that are kept after an op of a stage, beyond which the stage counts as fitting."""

SCALE_BITS = 4096
"""Bits of the scales in which seconds, and bytes, of stages of several devices are whole."""

OP_KEYS = frozenset(
    ("name", "op", "param_bytes", "shared", "out_bytes", "flops", "time_s", "colocate", "forbidden", "backward_of")
    + ("backward_time_s", "node", "nodes", "module", "scopes", "holds", "outputs", "tensors", "view")
    + ("axes", "operands", "constant_bytes", "precision", "label", "note", "menu")
)
DEVICE_KEYS = frozenset(
    ("name", "kind", "node", "memory_bytes", "cache_bytes", "reserve_bytes", "flops_per_s", "bytes_per_s", "launch_s")
    + ("io_bandwidth", "batch_sizes", "slowdown", "efficiency", "shares", "cost_per_hour", "host_s")
)
LINK_KEYS = frozenset(("from", "to", "bandwidth", "latency_s", "one_way"))
PLAN_KEYS = frozenset(
    ("format", "version", "objective", "inputs", "transfer_rule", "resident", "assignment", "batches", "transfers")
    + ("stages", "start_s", "devices", "values", "shard_inputs", "status", "bounds", "chunks", "chunk_order")
    + (
        "contiguous",
        "training",
        "groups",
        "stage_orders",
        "graph_fingerprint",
        "hardware_fingerprint",
        "graph",
        "hardware",
    )
    + ("bound_source", "method", "message", "notes", "history", "phase_s", "provenance", "graph_figures", "modules")
    + ("baselines", "baseline_notes")
)
GROUP_KEYS = frozenset(
    ("training", "microbatches", "replicas", "tensor_parallel", "uniform", "recompute", "exchange", "workspace_bytes")
    + ("mixed",)
)
TRAINING_KEYS = {"schedule", "microbatches", "recompute", "state_factor", "step_s", "stages", "exchange_bytes"}
SHARE_KEYS = frozenset(("kind", "replicas", "microbatches", "time_s", "in_flight", "held_bytes", "variants"))
OPTION_SIZES = ("time_s", "param_bytes", "held_bytes", "fixed_bytes", "shared_bytes")
OPTION_KEYS = frozenset(("name", *OPTION_SIZES, "sync_bytes"))
FLEET_KEYS = frozenset(
    ("format", "version", "name", "note", "layers", "devices", "links", "caches", "batches", "longest_s")
)
CACHE_KEYS = frozenset(("layers", "prompt_bytes", "token_bytes", "cache_bytes", "links"))
FLEET_DEVICE_KEYS = frozenset(
    ("name", "type", "tokens_per_s_by_layers_held", "tokens_per_s_by_first_layer", "seconds_by_batch")
    + ("sequences_by_first_layer", "like")
)
PASS_KEYS = frozenset(("ends_s", "sizes", "waits", "caps"))
FLEET_LINK_KEYS = frozenset(("from", "to", "tokens_per_s"))
SERVING_KEYS = frozenset(
    ("format", "version", "status", "tokens_per_s", "bound", "spans", "flow", "partial", "proof", "message")
    + ("weights", "paths", "baselines", "passes", "prompt_layers", "bounds")
)
SCHEDULE_KEYS = ("assignment", "values", "bounds", "stages", "batches", "transfers", "devices", "start_s")
CERTIFICATE_KEYS = frozenset(("format", "version", "graph_fingerprint", "hardware_fingerprint", "levels", "trusted"))
GRAPH_KEYS = frozenset(("format", "version", "name", "int_names", "ops", "edges"))
HARDWARE_KEYS = frozenset(("format", "name", "device", "bandwidth", "latency_s", "link", "sharing"))
"""What files, ops, devices and links may have: a misspelt key is no limit that is not there."""

INF: Any = math.inf

ZERO, ONE = Fraction(0), Fraction(1)


MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    ZeroDivisionError,
    OverflowError,
    RecursionError,
    StopIteration,
)
"""What reading a file of another form than it says comes to."""


class Refuted(Exception):
    """What the files say is not true."""


class TooLong(Refuted):
    """A proof takes more sets or pairs of them than are looked at here."""


def need(condition: Any, message: str) -> None:
    """Refute the plan unless a condition holds."""
    if not condition:
        raise Refuted(message)


# -- files ---------------------------------------------------------------------------------------------------------


def decimal(text: str) -> Fraction:
    """Return a decimal of a file as the rational that it is."""
    exponent = text.lower().partition("e")[2]
    need(len(text) < 400 and abs(int(exponent or 0)) < 400, f"a number is out of range: {text[:40]}")
    return Fraction(text)


def amount(text: str) -> Fraction:
    """Return a decimal of a graph or hardware: none is larger than anything there is."""
    need(len(text) <= MOST_DIGITS, f"a number has {len(text)} characters, more than {MOST_DIGITS}: {text[:40]}...")
    value = decimal(text)
    need(abs(value) <= LARGEST, f"{text[:40]} stands for no bytes, seconds or rate")
    return value


def negative(data: Any) -> Any:
    """Return a number below 0 of a graph or hardware, None without one; `axes`, which are unread, may have some."""
    if isinstance(data, (dict, list)):
        rows = data if isinstance(data, list) else [data[key] for key in data.keys() - {"axes", "operands"}]
        return next((found for found in map(negative, rows) if found is not None), None)
    return data if isinstance(data, Fraction) and data < 0 else None


def ratio(text: Any) -> Fraction:
    """Return a number of a proof, which is text such as ``"1/3"``."""
    need(isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?", text), "a number is no ratio")
    return Fraction(text)


def whole(value: Any, what: str, least: int = 0) -> int:
    """Return a whole number of a file."""
    sound = isinstance(value, Fraction) and value.denominator == 1 and value >= least
    need(sound, f"{what} is {str(value)[:40]!r}; expected a whole number of at least {least}")
    return int(value)


def constant(text: str) -> NoReturn:
    """Refuse what JSON has no number for."""
    raise Refuted(f"{text} is no number")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a file, whose keys must differ."""
    made = dict(pairs)
    need(len(made) == len(pairs), "a key stands twice in one object")
    return made


def read(path: str, form: str) -> Any:
    """Return the contents of a JSON file of a known form."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read(), form, path)
    except (OSError, ValueError, RecursionError) as problem:
        raise Refuted(f"cannot read {path}: {problem}") from None


def parse(text: str, form: str, name: str) -> Any:
    """Return the contents of JSON of a known form."""
    kind = amount if form in ("rlinit-graph", "rlinit-hardware", "rlinit-fleet") else decimal
    data = json.loads(text, parse_float=kind, parse_int=kind, parse_constant=constant, object_pairs_hook=unique)
    need(isinstance(data, dict) and data.get("format", form) == form, f"{name} is no {form} file")
    need(data.get("version", 1) == 1, f"{name} is of another version than 1")
    below = negative(data) if kind is amount else None
    need(below is None, f"{below} stands for no bytes, seconds or rate")
    return data


def number(row: Any, key: str, default: Any = None) -> Any:
    """Return a number of a row; `default` where there is none."""
    need(key not in row or isinstance(row[key], Fraction), f"{key} is {str(row.get(key))[:40]!r}; expected a number")
    return row.get(key, default)


def known(row: Any, keys: Any, what: str) -> None:
    """Refute keys that mean nothing."""
    need(row.keys() <= keys, f"{what} has unknown keys: {sorted(row.keys() - keys)}")


def named(rows: Any, keys: Any) -> dict[str, int]:
    """Return the place of each name among ops or devices, whose keys must make sense."""
    at = {row["name"]: place for place, row in enumerate(rows)}
    need(len(at) == len(rows) and all(isinstance(name, str) for name in at), "names are no text, or not unique")
    for row in rows:
        known(row, keys, f"{row['name']!r}")
    return at


class Graph:
    """Ops in the order of the file, their costs, tensors and who reads them."""

    def __init__(self, data: Any) -> None:
        known(data, GRAPH_KEYS, "the graph")
        self.ops = data["ops"]
        self.at = named(self.ops, OP_KEYS)
        self.names = list(self.at)
        self.param = [number(row, "param_bytes", ZERO) for row in self.ops]
        self.read_shared()
        self.group, groups = [row.get("colocate") for row in self.ops], defaultdict[Any, list[int]](list)
        for v, group in enumerate(self.group):
            groups[v if group is None else ("group", group)].append(v)
        self.groups = list(groups.values())  # ops that are together
        self.tensors: list[Any] = []  # (producer, name, bytes)
        row_of = {}
        for v, row in enumerate(self.ops):
            ports = {
                "": number(row, "out_bytes", ZERO),
                **(row["outputs"] if isinstance(row.get("outputs"), dict) else {}),
            }
            for port, size in ports.items():
                row_of[v, port] = len(self.tensors)
                self.tensors.append((v, port, size))
        self.readers = defaultdict(list)
        self.edges = []  # (producer, consumer, tensor)
        read: dict[tuple[int, int], Any] = {}
        for entry in data["edges"]:
            u, v = self.at[entry[0]], self.at[entry[1]]
            label = entry[2] if len(entry) > 2 else ""
            need(read.get((u, v), label) == label, f"{entry[1]!r} reads two tensors of {entry[0]!r}")
            if (u, v) in read:  # an edge that stands twice is one
                continue
            read[u, v] = label
            if not isinstance(label, str):
                row_of[u, f"-> {entry[1]}"] = len(self.tensors)
                self.tensors.append((u, f"-> {entry[1]}", label))
                label = f"-> {entry[1]}"
            self.edges.append((u, v, row_of[u, label]))
            self.readers[row_of[u, label]].append(v)
        need(all(isinstance(size, Fraction) for _, _, size in self.tensors), "the bytes of a tensor are no number")
        banned = [row.get("forbidden", []) for row in self.ops]
        need(all(isinstance(each, str) for row in banned for each in row), "a forbidden device is no text")
        need(all(isinstance(row, list) for row in banned), "forbidden devices are no list")
        need(all(isinstance(row.get("view", False), bool) for row in self.ops), "an op is or is not a view")
        need(all(isinstance(each, Fraction) for row in self.ops for each in times_of(row)), "a time is no number")
        self.order = topological(len(self.ops), [(u, v) for u, v, _ in self.edges])
        self.held = [ZERO] * len(self.ops)  # bytes of all tensors that an op reads and makes
        for u, _, size in self.tensors:
            self.held[u] += size
        self.made = list(self.held)
        self.reads: list[list[int]] = [[] for _ in self.ops]
        for _, v, tensor in self.edges:
            self.held[v] += self.tensors[tensor][2]
            self.reads[v].append(tensor)

    def read_shared(self) -> None:
        """Read which ops share parameters, of which a stage or device holds one copy for all its ops."""
        readers = defaultdict[Any, list[int]](list)
        for v, row in enumerate(self.ops):
            given = row.get("shared", {})
            need(isinstance(given, dict), f"what {row['name']!r} shares is no table")
            for name in given:
                readers[name, number(given, name)].append(v)
            need(sum(given.values()) <= self.param[v] * (1 + ROUNDING), f"{row['name']!r} shares more than it reads")
        need(len({name for name, _ in readers}) == len(readers), "a shared parameter has two sizes")
        self.shared = [(size, frozenset(ops)) for (_, size), ops in readers.items() if len(ops) > 1]
        # No set of ops holds less than its parts: of b bytes, of which it has c of m readers, these are b c / m <= b.
        self.part = list(self.param)
        for size, ops in self.shared:
            for v in ops:
                self.part[v] -= size * (1 - Fraction(1, len(ops)))

    def bytes_of(self, ops: Any) -> Fraction:
        """Return the bytes of the parameters of some ops, each once that several of them share."""
        inside = set(ops)
        again = (size * max(0, len(inside & readers) - 1) for size, readers in self.shared)
        return sum((self.param[v] for v in inside), ZERO) - sum(again, ZERO)

    def inner(self, v: int) -> Fraction:
        """Return the inner dimension k of an op that is a product of m rows with k n parameters; 0 for others."""
        row, size = self.ops[v], Fraction(BITS[compute_type(self.ops[v]) or "fp32"], 8)
        weights, read, made = (one / size for one in (self.param[v], self.held[v] - self.made[v], self.made[v]))
        flops = number(row, "flops")
        rows = round(2 * read * made / flops) if flops and op_class(row.get("op", "")) == "matmul" else 0
        if rows < 1 or not weights:
            return ZERO
        k, n = round(read / rows), round(made / rows)
        return Fraction(k) if k >= 1 and n >= 1 and abs(k * n / weights - 1) <= Fraction(1, 10) else ZERO

    def time(self, v: int, device: Any, batch: int = 1) -> Any:
        """Return the seconds of op v on a device; None where it may not run."""
        row = self.ops[v]
        if forbidden(self, v, device):
            return None
        sizes = times_on(row, device)
        for entry in sizes:
            if str(batch) in entry:
                return number(entry, str(batch)) * number(device, "slowdown", ONE)
        rate = rate_for(device.get("flops_per_s"), compute_type(row))
        need(not sizes and isinstance(rate, Fraction), f"op {row['name']!r} has no time on {device['name']!r}")
        if row.get("view"):
            return ZERO
        need("flops" in row, f"op {row['name']!r} has no time on {device['name']!r}")
        reached, name = device.get("efficiency", {}), op_class(row.get("op", ""))
        one = reached.get(name) or reached.get({"generation": "attention", "experts": "matmul"}.get(name), {})
        seconds = counted(one.get("flops"), batch * number(row, "flops")) / rate
        if "depth_s" in one:
            seconds = max(seconds, number(one, "depth_s") * self.inner(v))
        if device.get("bytes_per_s"):
            read = self.param[v]
            if op_class(row.get("op", "")) == "lookup":  # only the rows that it gives
                read = min(read, batch * self.made[v])
            moved = counted(one.get("bytes"), batch * self.held[v] + read)
            seconds = max(seconds, moved / number(device, "bytes_per_s"))
        seconds += number(one, "launch_s", number(device, "launch_s", ZERO))
        seconds = max(seconds, number(device, "host_s", ZERO))
        return seconds * number(device, "slowdown", ONE)


def times_on(row: Any, device: Any) -> list[Any]:
    """Return the times of an op by batch size for a device's name, for its kind and for every device, as given."""
    given, keys = row.get("time_s", {}), (device["name"], device.get("kind", ""), "*")
    if not isinstance(given, dict):
        given = {"*": given}
    return [given[key] if isinstance(given[key], dict) else {"1": given[key]} for key in keys if key in given]


def times_of(row: Any) -> Iterator[Any]:
    """Yield the times of an op, whatever device and batch they are for; None for a device without any."""
    given = row.get("time_s", {})
    for entry in given.values() if isinstance(given, dict) else [given]:
        sizes = entry if isinstance(entry, dict) else ()
        need(all(re.fullmatch("[1-9][0-9]{0,9}", size) for size in sizes), "a batch size of time_s is none")
        yield from (entry.values() or [None]) if isinstance(entry, dict) else [entry]


CLASSES = (
    ("experts", r"moe|experts"),
    ("generation", r"paged_attention|decode_attention|generation"),
    ("convolution", r"conv(?!ert)"),
    ("attention", r"attention|sdpa"),
    (
        "matmul",
        r"matmul|gemm|(^|_)linear|dense|(^|_)(add|b|badd|addb)?mm(_|$)|(^|_)(add)?mv(_|$)|(^|_)dot(_|$)"
        r"|einsum|tensordot|fully_connected|lstm|gru|rnn",
    ),
    ("pooling", r"pool"),
    (
        "transcendental",
        r"softmax|gelu|silu|swish|(^|_)(tanh|sigmoid|exp|erf|pow|sin|cos|log|softplus|mish|elu)(_|$)",
    ),
    ("normalisation", r"norm|reduce|cumsum|(^|_)(mean|sum|amax|amin|var|std|argmax|topk|sort)(_|$)"),
    ("lookup", r"embedding|gather|index|scatter|lookup"),
)


def op_class(kind: str) -> str:
    """Return the class of a kind of op, by which devices have efficiencies."""
    plain = re.sub(r"[^a-z]+", "_", kind.lower())
    return next((name for name, pattern in CLASSES if re.search(pattern, plain)), "elementwise")


def counted(points: Any, size: Fraction) -> Fraction:
    """Return size / share: linear between points of (size, share), the end points' shares outside."""
    if not points:
        return size
    if isinstance(points, Fraction):
        return size / points
    below = count = ZERO
    rows: list[tuple[Fraction, Fraction]] = [(at, at / share) for at, share in points]
    for at, more in rows:
        if size <= at:
            return count + (more - count) * (size - below) / (at - below)
        below, count = at, more
    return size * count / below


BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
WIDER = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "fp8": "fp16", "int8": "fp16", "int4": "int8"}
STORED = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4"}


def compute_type(row: Any) -> str:
    """Return the type of numbers an op computes in: the wider one of its weights and activations; "" if not said."""
    weights, activations = row.get("precision") or (None, None)
    if activations is None and isinstance(row.get("outputs"), list) and row["outputs"]:
        stored = str(row["outputs"][0][0])
        activations = "fp8" if stored.startswith("float8") else STORED.get(stored, "fp32")
    if weights is None or activations is None:
        return str(activations or weights or "")
    return str(weights if BITS[weights] > BITS[activations] else activations)


def rate_for(rates: Any, dtype: str) -> Any:
    """Return the operations a second for a type of numbers, or for the next wider one that the device has."""
    if not isinstance(rates, dict):
        return rates
    if not dtype:
        return next(rates[one] for one in BITS if one in rates)
    while dtype not in rates and dtype in WIDER:
        dtype = WIDER[dtype]
    return rates.get(dtype)


def forbidden(graph: Graph, v: int, device: Any) -> bool:
    """Return whether an op may not run on a device."""
    return not {device["name"], device.get("kind", "")}.isdisjoint(graph.ops[v].get("forbidden", ()))


def need_times(graph: Graph, device: Any, sizes: list[int]) -> None:
    """Refute an op without a time at a batch size where it may run, whether the plan has it there or not."""
    for v, row in enumerate(graph.ops):
        for size in sizes if times_on(row, device) else sizes[:1]:
            graph.time(v, device, size)


def shard_of(graph: Graph, hardware: Hardware, inputs: int) -> int:
    """Return the inputs of a shard: the common divisor of all inputs and of the batch sizes that devices name.

    Where a device takes batches of any size, it is divided further, into as many shards as have a time there for every
    number of them, and are at most 16, or 4 on a large graph.
    """
    named = [device["batch_sizes"] for device in hardware.devices if device.get("batch_sizes") is not None]
    shard = math.gcd(inputs, *(int(size) for sizes in named for size in sizes if size <= inputs))
    free = [device for device in hardware.devices if device.get("batch_sizes") is None]
    most = MOST_SHARDS[len(graph.ops) * len(hardware.devices) > FEW_OPS]
    for count in range(most if free else 0, inputs // shard, -1):
        if inputs % count == 0 and shard % (inputs // count) == 0:
            try:
                for device in free:
                    need_times(graph, device, [each * inputs // count for each in range(1, count + 1)])
            except Refuted:
                continue
            return inputs // count
    return shard


class Hardware:
    """Devices, and rate and delay from each to each; a rate of 0 where no path leads from one to the other."""

    def __init__(self, data: Any) -> None:
        known(data, HARDWARE_KEYS, "the hardware")
        self.devices, self.sharing = data["device"], data.get("sharing", {})
        self.at = named(self.devices, DEVICE_KEYS)
        d = len(self.devices)
        everywhere = rate_of(data["bandwidth"]) if "bandwidth" in data else ZERO if "link" in data else INF
        self.rate = [[INF if i == j else everywhere for j in range(d)] for i in range(d)]
        everywhere = number(data, "latency_s", ZERO)
        self.delay = [[0 if i == j else everywhere for j in range(d)] for i in range(d)]
        for link in data.get("link", ()):
            i, j = self.at[link["from"]], self.at[link["to"]]
            known(link, LINK_KEYS, "a link")
            need(isinstance(link.get("one_way", False), bool), "a link leads one way or both")
            for a, b in [(i, j)] if link.get("one_way") else [(i, j), (j, i)]:
                self.rate[a][b] = rate_of(link["bandwidth"])
                self.delay[a][b] = number(link, "latency_s", ZERO)
        for device in self.devices:
            rate_of(device.get("io_bandwidth", "unlimited"))
            sizes = device.get("batch_sizes")
            need(sizes is None or [whole(size, "a batch size", 1) for size in sizes], "a device takes no batch")
        if "link" in data and "bandwidth" not in data:  # else every pair has a link
            self.part()

    def part(self) -> None:
        """Leave pairs without a link apart, which no path may join."""
        d = len(self.devices)
        self.delay = [
            [delay if rate else 0 for delay, rate in zip(*rows, strict=True)]
            for rows in zip(self.delay, self.rate, strict=True)
        ]
        ways = [[sum(1 << at for at in range(d) if at != i and row[at]) for i, row in enumerate(rows)]
                for rows in (self.rate, list(zip(*self.rate, strict=True)))]  # fmt: skip
        need(
            not any(ways[0][i] & ways[1][j] for i in range(d) for j in range(d) if not self.rate[i][j]),
            "a pair of devices has no link but a path; write the widest path out for it",
        )

    def transfer(self, i: int, j: int, size: Fraction) -> Any:
        """Return the seconds that bytes take from device i to device j; INF where no path links them."""
        return self.delay[i][j] + over(size, self.rate[i][j]) if self.rate[i][j] else INF

    def io(self, i: int) -> tuple[Any, Any, Any, Any]:
        """Return (rate in, rate out, delay in, delay out) of device i as a pipeline stage."""
        own, others = self.devices[i].get("io_bandwidth"), [j for j in range(len(self.devices)) if j != i]
        own = None if own is None else rate_of(own)
        if own == INF or not others:
            return own or INF, own or INF, 0, 0
        slower = number(self.devices[i], "slowdown", ONE)
        rate_in, rate_out = (
            own or min(self.rate[j][i] for j in others),
            own or min(self.rate[i][j] for j in others),
        )
        need(rate_in and rate_out, f"no path links {self.devices[i]['name']!r} with every other device")
        return (
            rate_in / slower,
            rate_out / slower,
            max(self.delay[j][i] for j in others) * slower,
            max(self.delay[i][j] for j in others) * slower,
        )

    def capacity(self, i: int, key: str) -> Any:
        """Return the bytes of device i's memory or cache; None where it has no limit."""
        return number(self.devices[i], key)


def rate_of(value: Any) -> Any:
    """Return a rate of a file: a number above 0, or "unlimited"."""
    need(
        value == "unlimited" or (isinstance(value, Fraction) and Fraction(1, LARGEST) <= value <= LARGEST),
        f"{value!r} is no rate",
    )
    return INF if value == "unlimited" else value


def over(size: Fraction, rate: Any) -> Fraction:
    """Return size / rate, exact, 0 at an unlimited rate."""
    return ZERO if rate == INF else size / rate


def topological(n: int, edges: list[tuple[int, int]]) -> list[int]:
    """Return 0..n-1 so that every edge goes forward: of those that may come next, always the lowest."""
    after, waiting = defaultdict(list), [0] * n
    for u, v in edges:
        after[u].append(v)
        waiting[v] += 1
    ready, order = [v for v in range(n) if not waiting[v]], []
    while ready:
        u = heappop(ready)
        order.append(u)
        for v in after[u]:
            waiting[v] -= 1
            if not waiting[v]:
                heappush(ready, v)
    need(len(order) == n, "what must come before what is a cycle")
    return order


def near(said: Any, true: Fraction, what: str, room: Fraction = ZERO) -> None:
    """Refute a number of the plan that differs from the exact one by more than floats explain."""
    need(isinstance(said, Fraction), f"{what} is {str(said)[:40]!r}; expected a number")
    need(abs(said - true) <= ROUNDING * max(abs(said), abs(true), room), f"{what} is {float(said)}, not {float(true)}")


# -- schedules -----------------------------------------------------------------------------------------------------


def stage_use(graph: Graph, hardware: Hardware, objective: str, ops: list[int], i: int) -> dict[str, Any]:
    """Return the figures of a stage of these ops on device i (MTPP, equations 1 to 3)."""
    inside, tensors = set(ops), graph.tensors
    outside = {t for t, readers in graph.readers.items() if any(v not in inside for v in readers)}
    reads = {t for t, readers in graph.readers.items() if any(v in inside for v in readers)}
    enter = [tensors[t][2] for t in reads if tensors[t][0] not in inside]
    leave = [tensors[t][2] for t in outside if tensors[t][0] in inside]
    param = graph.bytes_of(ops)
    cache = hardware.capacity(i, "cache_bytes")
    spare = ZERO if cache is None else max(ZERO, param - cache)
    use = {"num_ops": len(ops), "param_bytes": param, "off_cache_bytes": spare, "out_bytes": sum(leave, ZERO)}
    use |= dict.fromkeys(("work_s", "in_s", "out_s", "overflow_s"), ZERO)  # `memory` counts no seconds
    if objective == "pipeline":
        rate_in, rate_out, delay_in, delay_out = hardware.io(i)
        use["work_s"] = sum((graph.time(v, hardware.devices[i]) for v in ops), ZERO)
        use["in_s"] = sum((over(size, rate_in) + delay_in for size in enter), ZERO)
        use["out_s"] = sum((over(size, rate_out) + delay_out for size in leave), ZERO)
        use["overflow_s"] = over(spare, rate_in)
    return use


def stage_members(plan: Any, graph: Graph) -> tuple[list[int], list[list[int]]]:
    """Return the stage of each op and the ops of each stage, after checking that no edge runs backwards."""
    need(not any("backward_of" in row for row in graph.ops), "backward ops are of training pipelines")
    need(not any(plan.get(key) for key in ("batches", "transfers", "devices", "start_s")), "stages have no timeline")
    rules = plan.get("transfer_rule", "parallel"), plan.get("resident", "tensors")
    need(rules == ("parallel", "tensors"), "rules of transfers and memory are of placements")
    need(set(plan["assignment"]) == set(graph.names), "the plan does not assign exactly the ops of the graph")
    assignment = [whole(plan["assignment"][name], f"the stage of {name!r}") for name in graph.names]
    members: list[list[int]] = [[] for _ in plan["stages"]]
    for v, stage in enumerate(assignment):
        need(stage < len(members), f"op {graph.names[v]!r} is on no stage")
        members[stage].append(v)
    for u, v, _ in graph.edges:
        need(assignment[u] <= assignment[v], f"an edge from {graph.names[u]!r} runs backwards")
    return assignment, members


def check_stages(plan: Any, graph: Graph, hardware: Hardware) -> tuple[Fraction, ...]:
    """Return the exact values of a stage plan."""
    objective, stages = plan["objective"], plan["stages"]
    need(not any(row.get("activation_bytes") for row in stages), "peaks of activation memory are not checked here")
    for device in hardware.devices if objective == "pipeline" else ():
        need_times(graph, device, [1])
    assignment, members = stage_members(plan, graph)
    devices: list[Any] = [hardware.at.get(row["device"]) for row in stages]
    need(None not in devices and len(set(devices)) == len(devices), "the stages are not on distinct known devices")
    need(objective == "pipeline" or devices == list(range(len(hardware.devices))), "the stages are out of order")
    for name, stage in zip(graph.names, assignment, strict=True):
        device = hardware.devices[devices[stage]]
        need(
            not forbidden(graph, graph.at[name], device), f"op {name!r} is on {device['name']!r}, where it is forbidden"
        )
    where: dict[Any, int] = {}
    for name, group, stage in zip(graph.names, graph.group, assignment, strict=True):
        need(group is None or where.setdefault(group, stage) == stage, f"{name!r} is apart from its group")
    uses = []
    for j, (ops, i) in enumerate(zip(members, devices, strict=True)):
        uses.append(stage_use(graph, hardware, objective, ops, i))
        for figure, true in uses[j].items():
            room = uses[j]["param_bytes"] / 1000 if figure == "off_cache_bytes" else true
            need(figure != "num_ops" or stages[j][figure] == true, f"stage {j} has {true} ops")
            near(stages[j][figure], true, f"{figure} of stage {j}", room)
        memory = hardware.capacity(i, "memory_bytes")
        need(memory is None or uses[j]["param_bytes"] <= memory * CAPACITY, f"stage {j} overfills its memory")
    if objective == "memory":
        return (
            max(use["param_bytes"] for use in uses),
            sum(use["off_cache_bytes"] for use in uses),
            max(use["out_bytes"] for use in uses),
        )
    return (max(use["in_s"] + use["work_s"] + use["overflow_s"] + use["out_s"] for use in uses),)


class Batches:
    """The batches of a plan as jobs on the lanes of their devices, and where every shard of every op runs."""

    def __init__(self, plan: Any, graph: Graph, hardware: Hardware) -> None:
        self.plan, self.graph, self.hardware = plan, graph, hardware
        inputs, said = (whole(plan.get(key, ONE), key, 1) for key in ("inputs", "shard_inputs"))
        self.shard = shard_of(graph, hardware, inputs)
        self.num_shards = inputs // self.shard
        need(said == self.shard, f"shard_inputs is {said}; these inputs are split into shards of {self.shard}")
        need(not plan["stages"], "a placement has no stages")
        need(self.num_shards <= sum(len(row["shards"]) for row in plan["batches"]), "some op runs too seldom")
        sizes = [count * self.shard for count in range(1, self.num_shards + 1)]
        for device in hardware.devices:
            need_times(graph, device, [size for size in sizes if size in (device.get("batch_sizes") or sizes)])
        self.jobs: list[Any] = []  # (seconds, start as written, what it is, end as written)
        self.lanes = defaultdict[Any, list[int]](list)
        self.where = defaultdict[int, dict[Any, int]](dict)
        self.at: dict[tuple[int, int], int] = {}
        self.held = [ZERO] * len(hardware.devices)
        self.rows = defaultdict[int, list[Any]](list)
        for row in plan["batches"]:
            self.add(row)
        for i in range(len(self.held)):
            self.held[i] += graph.bytes_of(v for v, j in self.at if i == j)
        need(all(len(self.where[v]) == self.num_shards for v in range(len(graph.names))), "some op runs too seldom")
        self.check_summary()
        self.check_devices()

    def add(self, row: Any) -> None:
        """Take one batch, after checking it."""
        graph, op = self.graph, f"op {row['op']!r}"
        need(row["op"] in graph.at and row["device"] in self.hardware.at, f"{op} on {row['device']!r} is unknown")
        v, i = graph.at[row["op"]], self.hardware.at[row["device"]]
        shards = [whole(each, f"a shard of {op}") for each in row["shards"]]
        size, device = len(shards) * self.shard, self.hardware.devices[i]
        need(shards, f"a batch of {op} is empty")
        need(device.get("batch_sizes") is None or size in device["batch_sizes"], f"{op} runs {size} at once")
        seconds = graph.time(v, device, size)
        need(seconds is not None, f"{op} is on {row['device']!r}, where it is forbidden")
        need((v, i) not in self.at, f"{op} has two batches on {row['device']!r}")
        near(row["end_s"], row["start_s"] + seconds, f"end_s of {op}")
        self.at[v, i] = len(self.jobs)
        self.lanes["device", i].append(len(self.jobs))
        self.rows[v].append(row)
        self.jobs.append((seconds, row["start_s"], op, row["end_s"]))
        for each in shards:
            need(each not in self.where[v] and each < self.num_shards, f"shard {each} of {op}")
            self.where[v][each] = i
        tensors = self.plan.get("resident", "tensors") == "tensors"
        self.held[i] += graph.held[v] * size if tensors else 0

    def check_summary(self) -> None:
        """Check `assignment` and `start_s` against the batches, and that colocated ops are together."""
        plan, groups = self.plan, dict[Any, Any]()
        for v, name in enumerate(self.graph.names):
            near(plan["start_s"][name], min(row["start_s"] for row in self.rows[v]), f"start_s of op {name!r}")
            runs = [device for device in self.hardware.at if device in [row["device"] for row in self.rows[v]]]
            need(plan["assignment"][name] == (runs if len(runs) > 1 else runs[0]), f"op {name!r} runs elsewhere")
            group = self.graph.group[v]
            need(group is None or groups.setdefault(group, self.where[v]) == self.where[v], f"{name!r} left its group")
        need(len(plan["assignment"]) == len(plan["start_s"]) == len(self.graph.names), "the plan names unknown ops")

    def check_devices(self) -> None:
        """Check what the plan says of each device, and that its memory holds it."""
        uses = self.plan["devices"]
        need([row["device"] for row in uses] == list(self.hardware.at), "the plan's devices are not the hardware's")
        for i, row in enumerate(uses):
            lane, memory = self.lanes["device", i], self.hardware.capacity(i, "memory_bytes")
            if self.plan.get("resident", "tensors") != "peak":
                near(row["held_bytes"], self.held[i], f"held_bytes of {row['device']!r}")
            near(row["busy_s"], sum((self.jobs[job][0] for job in lane), ZERO), f"busy_s of {row['device']!r}")
            need(row["num_batches"] == len(lane), f"num_batches of {row['device']!r}")
            need(memory is None or self.held[i] <= memory * CAPACITY, f"{row['device']!r} overfills its memory")


def check_placement(plan: Any, graph: Graph, hardware: Hardware) -> tuple[Fraction, ...]:
    """Return the exact makespan of a plan's batches and transfers in the order in which they run."""
    batches, ends = timeline(plan, graph, hardware)
    return (max(ends[: len(batches.at)]),)


def timeline(plan: Any, graph: Graph, hardware: Hardware) -> tuple[Batches, list[Fraction]]:
    """Return the batches of a plan, and the exact ends of these and of its transfers in the order in which they run."""
    batches = Batches(plan, graph, hardware)
    jobs, lanes, at = batches.jobs, batches.lanes, batches.at
    rule, num_batches = plan.get("transfer_rule", "parallel"), len(jobs)
    moves: dict[tuple[int, int, int], set[int]] = {}  # (tensor, source, target) -> shards
    readers = defaultdict[tuple[int, int, int], dict[int, int]](dict)
    for u, v, tensor in graph.edges:
        for each in range(batches.num_shards):
            move = tensor, batches.where[u][each], batches.where[v][each]
            moves.setdefault(move, set()).add(each)
            readers[move][v] = readers[move].get(v, 0) + 1
    listed = {(row["op"], row.get("tensor", ""), row["source"], row["target"]): row for row in plan["transfers"]}
    need(len(listed) == len(plan["transfers"]), "a tensor is moved twice")
    need(rule in ("parallel", "exclusive", "blocking"), f"unknown transfer rule {rule!r}")
    waits: list[tuple[int, int, Fraction]] = []  # (job before, job after, seconds between)
    delays: dict[tuple[int, int, int], Any] = {}  # (tensor, source, target) -> seconds, or the job that is the transfer
    for (tensor, i, j), shards in moves.items():
        u, port, size = graph.tensors[tensor]
        seconds = hardware.transfer(i, j, len(shards) * batches.shard * size) if i != j else ZERO
        devices = [hardware.devices[at]["name"] for at in (i, j)]
        need(seconds != INF, f"the output of {graph.names[u]!r} is moved between {devices}, which no path links")
        source, delays[tensor, i, j] = at[u, i], (seconds, None)
        if i != j and rule != "parallel":
            key = (graph.names[u], port, *devices)
            need(key in listed, f"the transfer {key} is missing")
            waits.append((source, len(jobs), ZERO))
            lanes[("device", j) if rule == "blocking" else (i, j)].append(len(jobs))
            source, delays[tensor, i, j] = len(jobs), (seconds, len(jobs))
            jobs.append((seconds, listed[key]["start_s"], f"the transfer {key}", listed[key]["end_s"]))
            near(listed[key]["end_s"], listed[key]["start_s"] + seconds, f"end_s of the transfer {key}")
            seconds = ZERO
        for v, count in readers[tensor, i, j].items():  # in parallel, each pair of batches moves what it shares
            alone = i != j and rule == "parallel"
            waits.append((source, at[v, j], hardware.transfer(i, j, count * batches.shard * size) if alone else ZERO))
    need(len(jobs) - num_batches == len(listed), "the plan lists transfers that nobody needs")
    near(max(row["end_s"] for row in plan["batches"]), plan["values"][0], "the end of the last batch")
    ends = run(jobs, lanes, waits)
    if plan.get("resident") == "peak":
        check_peaks(batches, ends, delays)
    return batches, ends


def check_peaks(batches: Batches, ends: list[Fraction], delays: Any) -> None:
    """Check that weights, the most bytes of live tensors and the reserve fit into each device.

    A tensor has a copy where it is made, from the start of its batch, and where it is moved to, from the start of the
    transfer; until the last batch that reads it there and the last transfer from there have ended, and for ever where
    nothing reads it. A view of one tensor lies in the copy it reads. The plan knows times up to rounding, and what is
    there at once likewise: all copies are a little shorter or longer.
    """
    low, high = (
        [most_at_once([copy for copy in copies if copy[0] == i], i, used, late) for i in range(len(batches.held))]
        for copies, used in [live_copies(batches, ends, delays)]
        for late in (-ROUNDING, ROUNDING)
    )
    for i, row in enumerate(batches.plan["devices"]):
        device, memory, weights = row["device"], batches.hardware.capacity(i, "memory_bytes"), batches.held[i]
        reserve = number(batches.hardware.devices[i], "reserve_bytes", ZERO)
        need(memory is None or weights + low[i] + reserve <= memory * CAPACITY, f"{device!r} overfills its memory")
        near(
            row["held_bytes"], min(max(row["held_bytes"], weights + low[i]), weights + high[i]), f"bytes of {device!r}"
        )


def live_copies(batches: Batches, ends: list[Fraction], delays: Any) -> tuple[list[Any], Any]:
    """Return copies as [device, begin, until, bytes], and those that each batch without time reads or makes."""
    graph, where, at, jobs = batches.graph, batches.where, batches.at, batches.jobs
    rows, reads = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for t, (u, _, _) in enumerate(graph.tensors):
        rows[u].append(t)
    for _, v, t in graph.edges:
        reads[v].append(t)
    copies: list[Any] = []  # [device, begin, until, bytes]
    there: dict[tuple[int, int, int], Any] = {}  # (tensor, shard, device) -> copy
    for v in graph.order:
        for i in sorted(set(where[v].values())):
            end, begin = ends[at[v, i]], ends[at[v, i]] - jobs[at[v, i]][0]
            shards = [each for each in where[v] if where[v][each] == i]
            for t in rows[v]:
                size, parts = graph.tensors[t][2] * batches.shard, defaultdict[int, set[int]](set)
                last: dict[int, Fraction] = {}
                for w in graph.readers.get(t, ()):
                    for each in shards:
                        j = where[w][each]
                        parts[j].add(each)
                        last[j] = max(last.get(j, ZERO), ends[at[w, j]])
                own = [i, begin, max(end, last.get(i, ZERO)) if last else INF, size * len(shards)]
                for j in parts:
                    if j != i:
                        seconds, job = delays[t, i, j]
                        arrives = end + seconds if job is None else ends[job]
                        own[2] = max(own[2], arrives)
                        copies.append([j, arrives - seconds, last[j], size * len(parts[j])])
                        there |= {(t, each, j): copies[-1] for each in parts[j]}
                copies.append(own)
                there |= {(t, each, i): own for each in shards}
                if graph.ops[v].get("view") and len(reads[v]) < 2:
                    bases = [there[read, each, i] for read in reads[v] for each in shards]
                    if all(base is bases[0] for base in bases):
                        own[3] = ZERO
                        for base in bases:
                            base[2] = max(base[2], own[2])
                        there |= {(t, each, i): bases[0] for each in shards if bases}
    used: list[Any] = []  # of each batch: device, when it starts, and the copies it reads and makes
    for (v, i), job in at.items():
        mine = [there[t, each, i] for t in reads[v] + rows[v] for each in where[v] if where[v][each] == i]
        used.append((i, ends[job] - jobs[job][0], mine))
    return copies, used


def most_at_once(copies: list[Any], i: int, used: Any, late: Fraction) -> Fraction:
    """Return the most bytes of a device's copies when one or a batch begins; copies end a part sooner or later.

    What a batch reads and makes is there while it begins, whatever rounding says. Copies that end later begin sooner as
    well; none ends before it begins.
    """
    spans = {}
    for copy in copies:
        begin = copy[1] * (1 - max(late, ZERO))
        spans[id(copy)] = begin, max(begin, copy[2] * (1 + late)), copy[3]
    begun = sorted((begin, size) for begin, _, size in spans.values() if size)
    ended = sorted((until, size) for _, until, size in spans.values() if size)
    begins, ends = [time for time, _ in begun], [time for time, _ in ended]
    made, gone = ([ZERO, *accumulate(size for _, size in rows)] for rows in (begun, ended))
    most = ZERO
    at_work = [(time, mine) for device, time, mine in used if device == i]
    for time, mine in [*at_work, *((time, []) for time in set(begins))]:
        there = made[bisect_right(begins, time)] - gone[bisect_right(ends, time)]
        over = {id(copy): copy[3] for copy in mine if not spans[id(copy)][0] <= time < spans[id(copy)][1]}
        most = max(most, there + sum(over.values(), ZERO))
    return most


def run(jobs: list[Any], lanes: Any, waits: list[tuple[int, int, Fraction]]) -> list[Fraction]:
    """Return when each job ends if it starts as soon as those before it allow; as written, none may start sooner."""
    rank = {job: at for at, job in enumerate(topological(len(jobs), [(a, b) for a, b, _ in waits]))}
    chained = list(waits)
    for lane in lanes.values():
        lane.sort(key=lambda job: (jobs[job][1], jobs[job][3], rank[job]))
        chained += [(a, b, ZERO) for a, b in pairwise(lane)]
    ends = [jobs[job][0] for job in range(len(jobs))]
    after = defaultdict(list)
    for a, b, seconds in chained:
        after[a].append((b, seconds))
    for a in topological(len(jobs), [(a, b) for a, b, _ in chained]):
        seconds, written, what, _ = jobs[a]
        need(written >= 0, f"{what} starts before 0")
        for b, between in after[a]:
            there = written + seconds + between
            need(
                jobs[b][1] >= there * (1 - ROUNDING),
                f"{jobs[b][2]} starts at {float(jobs[b][1])} s; what it waits for is there at {float(there)} s",
            )
            ends[b] = max(ends[b], ends[a] + between + jobs[b][0])
    return ends


# -- proofs --------------------------------------------------------------------------------------------------------


class Costs:
    """Times (op -> device -> seconds or None) of a problem about seconds, or bytes as one device's times."""

    def __init__(self, plan: Any, graph: Graph, hardware: Hardware, level: int, values: tuple[Fraction, ...]) -> None:
        self.graph, self.hardware, self.objective = graph, hardware, plan["objective"]
        self.expired: Callable[[], bool] = lambda: False  # who looks for a proof may end the search here
        self.reached: Callable[[Costs, Fraction], Any] = reached_states  # and count with another checker
        self.most_pairs = MOST_PAIRS
        self.level, self.values = level, values
        memory, placed = self.objective == "memory", self.objective in ("latency", "throughput")
        resident = plan.get("resident", "tensors") if placed else "weights"
        self.microbatches = 0
        self.scattered = plan.get("chunks", 1) > 1 or not plan.get("contiguous", True)
        self.num_devices, self.devices = len(hardware.devices), range(len(hardware.devices))
        inputs = whole(plan.get("inputs", ONE), "inputs", 1)
        shard = self.shard = shard_of(graph, hardware, inputs)
        self.runs_once = self.objective == "latency" or (self.objective == "throughput" and shard == inputs)
        self.num_shards, shards = inputs // shard, range(1, inputs // shard + 1)
        # Bytes of a shard: of which no set of ops has less, and those that are there while an op runs, beside these.
        tensors = graph.held if resident == "tensors" else [ZERO] * len(graph.ops)
        self.held = [p + h * shard for p, h in zip(graph.part, tensors, strict=True)]
        self.beside = [ZERO] * len(graph.ops)
        if resident == "peak":
            # Of copies that an op reads or makes, or views of one.
            least: list[dict[int, Any]] = [{} for _ in graph.ops]
            for v, t in [*((u, t) for t, (u, _, _) in enumerate(graph.tensors)), *((v, t) for _, v, t in graph.edges)]:
                base, sizes, u = t, [graph.tensors[t][2]], graph.tensors[t][0]
                while graph.ops[u].get("view") and len(graph.reads[u]) < 2:
                    if not graph.reads[u]:  # it lies in parameters
                        sizes.append(ZERO)
                        break
                    (base,) = graph.reads[u]
                    u = graph.tensors[base][0]
                    sizes.append(graph.tensors[base][2])
                least[v][base] = min(sizes + [least[v].get(base, INF)])
            self.beside = [sum(sizes.values(), ZERO) * shard for sizes in least]
        self.paths = [[i == j or hardware.rate[i][j] != 0 for j in self.devices] for i in self.devices]
        self.room: list[Any] = []  # bytes for these
        for i, device in enumerate(hardware.devices):
            capacity = hardware.capacity(i, "memory_bytes")
            reserve = number(device, "reserve_bytes", ZERO) if resident == "peak" else ZERO
            self.room.append(INF if capacity is None else capacity * CAPACITY - reserve)
        self.stays = [ZERO] * len(graph.ops)  # bytes of a shard of what no op reads, which is there at the end
        for t, (u, _, size) in enumerate(graph.tensors):
            if resident == "peak" and t not in graph.readers and not graph.ops[u].get("view"):
                self.stays[u] += size * shard

        def runs(v: int, device: Any) -> list[tuple[int, Any]]:
            """Return the shards of an op that one device may run at once, with the time of each of these numbers."""
            sizes = device.get("batch_sizes") or [count * shard for count in shards]
            found = [(count, graph.time(v, device, count * shard)) for count in shards if count * shard in sizes]
            return [(count, each) for count, each in found if each is not None]

        def amount(v: int, device: Any) -> Any:
            if memory:
                return None if forbidden(graph, v, device) else graph.part[v]
            if self.objective == "pipeline":
                return graph.time(v, device)
            return min((len(shards) * each / count for count, each in runs(v, device)), default=None)

        self.times: list[list[Any]] = [
            [amount(v, device) for device in hardware.devices] for v in range(len(graph.ops))
        ]
        self.counts = [[[1] if each is not None else [] for each in row] for row in self.times]
        if self.objective == "throughput":
            names = range(len(graph.ops))
            self.counts = [[[n for n, _ in runs(v, device)] for device in hardware.devices] for v in names]

    def least(self, v: int) -> Fraction:
        """Return the time of op v on its fastest device."""
        least: Fraction = min(seconds for seconds in self.times[v] if seconds is not None)
        return least


def prove_op(proof: Any, costs: Costs) -> Fraction:
    """Return the longest time of an op on its fastest device, or the bytes of the largest."""
    if costs.objective == "memory":
        return max(costs.graph.param, default=ZERO)
    return max((costs.least(v) for v in range(len(costs.times))), default=ZERO)


def prove_load(proof: Any, costs: Costs) -> Fraction:
    """Return sum_v min_d y_d time(v, d) for the multipliers y of the proof, or the least of all its cases.

    A node with an op and a device splits into that the op is there, and that it is not; others have multipliers.
    """
    if "cases" not in proof:
        return balanced(proof["multipliers"], costs.times)
    need(costs.objective != "throughput" or costs.runs_once, "shards of an op may be on several devices")
    nodes, stack, least = iter(proof["cases"]), [costs.times], INF
    while stack:
        times, node = stack.pop(), next(nodes)
        if "op" in node:
            v, i = (int(node[key]) for key in ("op", "device"))
            need(0 <= v < len(times) and 0 <= i < costs.num_devices, "a node is about no op or device")
            for there in (False, True):
                row = [each if (j == i) == there else None for j, each in enumerate(times[v])]
                if any(each is not None for each in row):
                    stack.append([*times[:v], row, *times[v + 1 :]])
        else:
            least = min(least, balanced(node["multipliers"], times))
    need(next(nodes, None) is None and least < INF, "the cases are too many, or all empty")
    return Fraction(least)


def balanced(y: Any, loads: list[list[Any]]) -> Fraction:
    """Return the least sum of what ops load devices with, or None, weighed by multipliers."""
    need(all(len(row) == len(y) for row in loads), "there is one multiplier a device")
    need(all(len(each) <= MOST_LETTERS for each in y), f"a multiplier has more than {MOST_LETTERS} characters")
    y = [ratio(each) for each in y]
    need(min(y) >= 0 and sum(y) <= 1, "multipliers must be >= 0 and sum to at most 1")
    return sum((min(a * load for a, load in zip(y, row, strict=True) if load is not None) for row in loads), ZERO)


def prove_packing(proof: Any, costs: Costs) -> Fraction:
    """Return the threshold of the proof if no k devices hold the ops below it, by a dual feasible function.

    With e at most half the threshold, a device with an op above threshold - e holds no other of e and more (bound L2 of
    Martello and Toth): the former count 1, those below e nothing, the others their share of the threshold. With p parts
    a share x counts floor((p + 1) x) / p, or x where (p + 1) x is whole (u^(p) of Fekete and Schepers). Either way
    what a device holds below the threshold counts at most 1; without parts, less than 1 where it holds no large op.
    """
    threshold, small, steps = (ratio(proof.get(key, "0")) for key in ("threshold", "small", "parts"))
    parts = whole(steps, "parts")
    need(0 <= small <= threshold / 2 and threshold, "the small items' size must be at most half the threshold")
    sizes = [costs.least(v) for v in range(len(costs.times))]
    shares = [each / threshold for each in sizes if small <= each <= threshold - small]
    if parts:
        shares = [x if (parts + 1) * x % 1 == 0 else Fraction((parts + 1) * x // 1, parts) for x in shares]
    left = costs.num_devices - sum(1 for each in sizes if each > threshold - small)
    asked = sum(shares, ZERO)
    need(asked > left or (asked == left > 0 and not parts), "the ops fit by the dual feasible function")
    return threshold


def prove_quantum(proof: Any, costs: Costs) -> Fraction:
    """Return the bound of the proof within, raised to a multiple of what divides all times; nothing else may count."""
    need(proof["proof"].get("kind") != "quantum", "a quantum of a quantum is the same")
    bound, quantum = prove(proof["proof"], costs), quantum_of(costs)
    return -(-bound // quantum) * quantum if quantum else bound


def quantum_of(costs: Costs) -> Fraction:
    """Return the largest number that divides all times, which every value is a multiple of; 0 where all are 0."""
    numbers = [seconds for row in costs.times for seconds in row if seconds]
    graph, hardware = costs.graph, costs.hardware
    if costs.objective == "pipeline":
        for i in range(costs.num_devices):
            rate_in, rate_out, delay_in, delay_out = hardware.io(i)
            need(hardware.capacity(i, "cache_bytes") is None or rate_in == INF, "overflow has no quantum")
            sizes = [graph.tensors[tensor][2] for tensor in graph.readers]
            numbers += [
                over(size, rate) + delay
                for size in sizes
                for rate, delay in ((rate_in, delay_in), (rate_out, delay_out))
            ]
    elif costs.runs_once:
        pairs = [(i, j) for i in range(costs.num_devices) for j in range(costs.num_devices) if i != j]
        linked = [(i, j) for i, j in pairs if hardware.rate[i][j]]
        numbers += [
            hardware.transfer(i, j, graph.tensors[t][2] * costs.shard) for t in graph.readers for i, j in linked
        ]
    elif costs.objective == "memory":
        numbers += [size / len(readers) for size, readers in graph.shared]
    scale = common_multiple(numbers, QUANTUM_BITS)
    need(scale, "the times have no quantum that is worth its digits")
    return Fraction(math.gcd(*(int(each * scale) for each in numbers)), scale)


def common_multiple(numbers: list[Any], bits: int) -> int:
    """Return the least number whose products with some numbers are whole; 0 where it is longer than so many bits."""
    scale = 1
    for each in numbers:
        scale = math.lcm(scale, Fraction(each).denominator)
        if scale.bit_length() > bits:
            return 0
    return scale


class State:
    """A node of a tree: the devices left of each op, its heads and tails there, what runs before what, devices used."""

    __slots__ = ("devices", "head", "later", "pairs", "tail", "used")

    def __init__(self, devices: Any, head: Any, tail: Any, later: Any, pairs: Any, used: Any) -> None:
        self.devices, self.head, self.tail = devices, head, tail
        self.later: list[int] = later  # ops that run after each, as bits
        self.pairs: list[tuple[int, int]] = pairs  # ops of one device in the order found or decided
        self.used: frozenset[int] = used

    def copy(self) -> State:
        """Return a state to be changed."""
        devices, head, tail = ([list(row) for row in rows] for rows in (self.devices, self.head, self.tail))
        return State(devices, head, tail, list(self.later), list(self.pairs), self.used)


class Windows:
    """What schedules below a threshold leave open: devices, heads and tails of ops, orders; in whole numbers.

    Times are scaled and rounded down, which makes no schedule longer, and divided by what divides all of them, so that
    a makespan is a whole number: one below the threshold is at most `most`. The head of an op on a device is the least
    time before it starts there, its tail the least time from its end to the end of all.
    """

    def __init__(self, costs: Costs, threshold: Fraction, bits: int = WHOLE_BITS) -> None:
        graph, hardware, d = costs.graph, costs.hardware, costs.num_devices
        self.costs, self.d, self.order = costs, d, graph.order
        self.held, self.room = costs.held, costs.room
        moves = {
            t: [
                [hardware.transfer(i, j, graph.tensors[t][2] * costs.shard) if i != j else ZERO for j in range(d)]
                for i in range(d)
            ]
            for t in graph.readers
        }
        known = [x for row in costs.times for x in row if x is not None]
        known += [x for move in moves.values() for row in move for x in row if x != INF]
        scale = Fraction(common_multiple(known, bits) or Fraction(1 << bits) / threshold)
        unit = math.gcd(*(math.floor(x * scale) for x in known)) or 1
        self.units = scale / unit  # in a second
        self.most = math.ceil(threshold * self.units) - 1

        def whole(x: Any) -> Any:  # what takes for ever is in no schedule below the threshold
            return None if x is None else self.most + 1 if x == INF else math.floor(x * scale) // unit

        self.bound = (
            max(threshold, (self.most + 1) / self.units) if all(x * scale % 1 == 0 for x in known) else threshold
        )
        self.time = [[whole(x) for x in row] for row in costs.times]
        self.move = {t: [[whole(x) for x in row] for row in move] for t, move in moves.items()}
        self.before: list[list[Any]] = [[] for _ in graph.ops]  # (op, seconds from device to device)
        self.after: list[list[Any]] = [[] for _ in graph.ops]
        for u, v, t in graph.edges:
            self.add_lag(u, v, self.move[t])
        self.groups = graph.groups
        able = {v: [i for i in range(d) if any(way[i] for way in spreads_of(costs, [v]))] for v in self.order}
        self.root = self.start([able[v] for v in range(len(able))])
        self.alike = [next(j for j in range(d) if j == i or self.same(j, i)) for i in range(d)]

    def start(self, devices: Any) -> State:
        """Return the case in which nothing is decided."""
        later, zeros = [0] * len(devices), [[0] * self.d for _ in devices]
        for u in reversed(self.order):
            for v, _ in self.after[u]:
                later[u] |= later[v] | 1 << v
        return State(devices, zeros, zeros, later, [], frozenset()).copy()

    def add_lag(self, u: int, v: int, least: Any) -> None:
        """Let op v start, after op u has ended, no earlier than by a table of their devices."""
        self.before[v].append((u, least))
        self.after[u].append((v, [list(row) for row in zip(*least, strict=True)]))

    def inside(self, a: int, b: int) -> list[int]:
        """Return the ops that run after one and before another."""
        later = self.root.later
        return [v for v in range(len(later)) if later[a] >> v & later[v] >> b & 1]

    def between(self, a: int, b: int) -> Windows:
        """Return the problem of the ops between two, which take no time themselves: any schedule is one of it, too."""
        ops = sorted([a, *self.inside(a, b), b])
        at = {v: x for x, v in enumerate(ops)}
        part = shallow(self)
        part.order = [at[v] for v in self.order if v in at]
        part.time = [[0] * self.d if v in (a, b) else self.time[v] for v in ops]
        part.before = [[(at[u], move) for u, move in self.before[v] if u in at] for v in ops]
        part.after = [[(at[w], move) for w, move in self.after[v] if w in at] for v in ops]
        part.held = [self.held[v] for v in ops]
        part.groups = [mine for group in self.groups if (mine := [at[v] for v in group if v in at])]
        part.root = part.start([self.root.devices[v] for v in ops])
        return part

    def data(self) -> Any:
        """Return all in which problems between ops differ."""
        return self.time, self.before, self.held, self.groups, self.root.devices

    def ends_on(self, i: int, j: int, least: int) -> tuple[Windows, State]:
        """Return the problem of ops `between` where the first is on device i, the last on j less than `least` later."""
        part, case = shallow(self), self.root.copy()
        part.most = least - 1
        case.used = frozenset((i, j))
        for v, device in ((self.order[0], i), (self.order[-1], j)):
            for w in next(group for group in self.groups if v in group):
                case.devices[w] = [x for x in case.devices[w] if x == device]
        return part, case

    def same(self, i: int, j: int) -> bool:
        """Return whether two devices can change places in every schedule."""
        swap = [j if x == i else i if x == j else x for x in range(self.d)]
        links, room = (self.costs.hardware.rate, self.costs.hardware.delay), self.room
        return room[i] == room[j] and all(row[i] == row[j] for row in self.costs.times) and all(
            link[a][b] == link[swap[a]][swap[b]] for link in links for a in range(self.d) for b in range(self.d)
        )  # fmt: skip

    def settle(self, state: State) -> bool:
        """Raise heads and tails and strike devices out until nothing changes; return whether something is left."""
        order = self.order
        if not all(state.devices):
            return False
        for _ in range(MOST_PASSES):
            befores, afters = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
            for u, v in state.pairs:
                befores[v].append(u)
                afters[u].append(v)
            changed = self.carry(state, order, state.head, self.before, befores)
            changed |= self.carry(state, order[::-1], state.tail, self.after, afters)
            left = self.strike(state)
            if left is None or not self.fits(state):
                return False
            if len(order) <= ORDERED_OPS:
                found = self.orders(state)
                if found is None:
                    return False
                left |= found
            if not changed and not left:
                break
        return True

    def carry(self, state: State, order: Any, bound: Any, before: Any, pairs: Any) -> bool:
        """Raise heads over what runs before, in an order of ops; tails likewise, in time reversed."""
        changed = False
        for v in order:
            own, mine = bound[v], state.devices[v]
            for u, move in before[v]:
                ends = [(bound[u][j] + self.time[u][j], j) for j in state.devices[u]]
                for i in mine:
                    least = min([end + move[j][i] for end, j in ends])
                    if least > own[i]:
                        own[i], changed = least, True
            for u in pairs.get(v, ()):  # on the one device of both
                least = bound[u][mine[0]] + self.time[u][mine[0]]
                if least > own[mine[0]]:
                    own[mine[0]], changed = least, True
        return changed

    def strike(self, state: State) -> bool | None:
        """Strike devices out on which an op, or one of its group, is too late; None where an op has none left."""
        changed = False
        for group in self.groups:
            left = [
                i
                for i in state.devices[group[0]]
                if all(
                    i in state.devices[v] and state.head[v][i] + self.time[v][i] + state.tail[v][i] <= self.most
                    for v in group
                )
            ]
            if not left:
                return None
            for v in group:
                changed |= left != state.devices[v]
                state.devices[v] = left
        return changed

    def fits(self, state: State) -> bool:
        """Return whether no device has more to do than there is time between the least head and tail, nor all have."""
        fixed: list[list[Any]] = [[] for _ in range(self.d)]
        held, every = [0] * self.d, []
        for v, mine in enumerate(state.devices):
            head, tail, time = state.head[v], state.tail[v], self.time[v]
            if len(mine) == 1:
                fixed[mine[0]].append((tail[mine[0]], head[mine[0]], time[mine[0]]))
                held[mine[0]] += self.held[v]
            every.append((min(tail[i] for i in mine), min(head[i] for i in mine), min(time[i] for i in mine)))
        rooms = zip(held, self.room, strict=True)
        return all(bytes_held <= room for bytes_held, room in rooms) and all(
            load + count * (head + tail) <= count * self.most
            for jobs, count in [*((jobs, 1) for jobs in fixed), (every, self.d)]
            for head, tail, load in crowded(jobs)
        )

    def floor(self, state: State) -> Any:
        """Return the makespan that the ops' heads and tails ask for."""
        return max(
            min(state.head[v][i] + self.time[v][i] + state.tail[v][i] for i in mine)
            for v, mine in enumerate(state.devices)
        )

    def orders(self, state: State) -> bool | None:
        """Order ops of one device of which one cannot be first; None where neither can, or an op has no device left."""
        changed = False
        for i in range(self.d):
            fixed = [v for v, mine in enumerate(state.devices) if mine == [i]]
            for at, u in enumerate(fixed):
                first, last = state.head[u][i] + self.time[u][i], self.time[u][i] + state.tail[u][i]
                for v, mine in enumerate(state.devices):
                    if i not in mine or v == u or (v in fixed[:at]) or (state.later[u] >> v | state.later[v] >> u) & 1:
                        continue
                    forth = first + self.time[v][i] + state.tail[v][i] <= self.most
                    back = state.head[v][i] + self.time[v][i] + last <= self.most
                    if not forth and not back:
                        if len(mine) == 1:
                            return None
                        for w in next(group for group in self.groups if v in group):
                            state.devices[w] = [j for j in mine if j != i]
                        changed = True
                    elif len(mine) == 1 and forth != back:
                        put(state, *((u, v) if forth else (v, u)))
                        changed = True
        return changed


def put(state: State, u: int, v: int) -> None:
    """Let op u run before op v, which is on the same device."""
    state.pairs.append((u, v))
    further = state.later[v] | 1 << v
    state.later = [each | further if w == u or each >> u & 1 else each for w, each in enumerate(state.later)]


def crowded(jobs: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield heads, tails, and the times of the jobs (tail, head, time) of at least these."""
    jobs = sorted(jobs, reverse=True)
    heads = sorted({head for _, head, _ in jobs})
    for least in heads[:: 1 + len(heads) // MOST_HEADS]:
        load = 0
        for tail, head, time in jobs:
            if head >= least:
                load += time
                yield least, tail, load


Row = tuple[dict[tuple[int, int], Any], dict[int, int], int, Any]

ROW_LENGTHS = {"before": 2, "head": 1, "tail": 1, "memory": 1, "between": 3, "interval": 3}
"""Arguments of each kind of row but ``move``, which names as many devices as it likes, each once."""


def row_of(windows: Windows, state: State, kind: str, args: list[Any]) -> Row:
    """Return what a row says of every schedule: shares of ops on devices, starts, the end, and a number.

    ``sum share[v, i] x[v, i] + sum start[v] t[v] - end C + number <= 0``, where x[v, i] is 1 where op v is on device i
    and else 0, t[v] is its start and C the makespan.

    before u v      op u ends before op v starts
    move u v i ...  and where u is on one of these devices and v is not, the least transfer out of them lies between
    head v, tail v  an op starts no earlier than its head, and ends no later than its tail before C
    memory i        the ops of a device take no more bytes than it has
    between i a b   the ops of a device that run after a and before b run between these; -1 is the start, or the end
    interval i h q  those with heads and tails of at least h and q run between these
    """
    share, start = defaultdict[tuple[int, int], Any](int), defaultdict[int, int](int)
    devices, n = state.devices, len(state.devices)

    def add(v: int, amounts: Any, on: Any, sign: int = 1) -> None:
        for i in on:
            if i in devices[v]:
                share[v, i] += sign * amounts[i]

    def ends(v: int) -> None:
        start[v] += 1
        add(v, windows.time[v], devices[v])

    need(kind == "move" or len(args) == ROW_LENGTHS.get(kind), "a row is unknown, or has another number of arguments")
    if kind in ("before", "move", "head", "tail"):
        need(all(0 <= v < n for v in args[:2]), "a row is about no op")
        need(len(set(args[2:])) == len(args[2:]), "a row names a device twice")
        u, v = args[0], args[min(1, len(args) - 1)]
        if kind != "head":
            ends(u)
        if kind in ("head", "tail"):
            add(u, state.head[u] if kind == "head" else state.tail[u], devices[u])
        else:
            need(state.later[u] >> v & 1, "the ops of a row are in no order")
        if kind == "move":
            move = next(move for w, move in windows.before[v] if w == u)
            cost = min(move[i][j] for i in args[2:] for j in range(windows.d) if j not in args[2:])
            add(u, [cost] * windows.d, args[2:])
            add(v, [cost] * windows.d, args[2:], -1)
        if kind != "tail":
            start[v] -= 1
        return share, start, int(kind == "tail"), 0
    i = args[0]
    need(0 <= i < windows.d, "a row is about no device")
    if kind == "memory":
        need(windows.room[i] != INF, "a row is about memory without end")
        for v in range(n):
            add(v, [windows.held[v]] * windows.d, [i])
        return share, start, 0, -windows.room[i]
    _, a, b = args
    if kind == "between":
        need(min(a, b) >= -1 and max(a, b) < n and (min(a, b) < 0 or state.later[a] >> b & 1), "ops are in no order")
        inside = [v for v in range(n) if (a < 0 or state.later[a] >> v & 1) and (b < 0 or state.later[v] >> b & 1)]
        if a >= 0:
            ends(a)
        start[b] -= b >= 0
    else:
        need(a + b <= windows.floor(state), "a row is about too much time")
        inside = [v for v in range(n) if state.head[v][i] >= a and state.tail[v][i] >= b]
    for v in inside:
        add(v, windows.time[v], [i])
    return share, start, int(kind == "interval" or b < 0), a + b if kind == "interval" else 0


def refuted(windows: Windows, state: State, rows: Any) -> bool:
    """Return whether rows, each with a multiplier >= 0 at its end, contradict each other (Farkas).

    The sum of the rows is at most 0 in every schedule; it is refuted if its least value is not, with every group of ops
    on one device, every start within its head and tail, and the makespan at most what is below the threshold.
    """
    shares, starts, end, total = defaultdict[Any, Any](int), defaultdict[int, Any](int), ZERO, ZERO
    for kind, *args in rows:
        *args, weight = (int(each) for each in args)
        need(weight >= 0, "a multiplier is negative")
        share, start, ends, const = row_of(windows, state, kind, args)
        for key, amount in share.items():
            shares[key] += weight * amount
        for v, amount in start.items():
            starts[v] += weight * amount
        end, total = end + weight * ends, total + weight * const
    for v, amount in starts.items():
        mine = state.devices[v]
        if amount > 0:
            total += amount * min(state.head[v][i] for i in mine)
        elif amount < 0:
            total += amount * (windows.most - min(windows.time[v][i] + state.tail[v][i] for i in mine))
    for group in windows.groups:
        total += min(sum(shares.get((v, i), 0) for v in group) for i in state.devices[group[0]])
    return bool(total > end * windows.most)


def branches(windows: Windows, state: State, node: Any) -> Iterator[State]:
    """Yield the cases that a node splits into: the devices of an op, or which of two ops of one device is first.

    Of devices that nothing was decided about and that can change places, one stands for all.
    """
    if "pair" in node:
        u, v = (int(each) for each in node["pair"])
        need(min(u, v) >= 0, "a node is about no op")
        mine = state.devices[u]
        need(u != v and len(mine) == 1 and mine == state.devices[v], "a pair is not on one device")
        for first, second in ((u, v), (v, u)):
            case = state.copy()
            case.used |= {mine[0]}
            put(case, first, second)
            yield case
        return
    v = int(node["op"])
    need(0 <= v < len(state.devices), "a node is about no op")
    fresh = set(range(windows.d)) - state.used
    for i in state.devices[v]:
        if i in fresh and any(j in fresh and windows.alike[j] == windows.alike[i] for j in range(i)):
            continue
        case = state.copy()
        case.used |= {i}
        for w in next(group for group in windows.groups if v in group):
            case.devices[w] = [i]
        yield case


def close(windows: Windows, state: State, nodes: Any) -> None:
    """Refute a case by the nodes of a tree, in the order of a search."""
    rows, stack = iter(nodes), [state]
    while stack:
        state = stack.pop()
        if windows.settle(state):
            node: Any = next(rows, None)
            need(node is not None, "the tree leaves a case open")
            if "rows" in node:
                need(refuted(windows, state, node["rows"]), "the rows of a leaf do not refute it")
            else:
                stack += reversed(list(branches(windows, state, node)))
    need(next(rows, None) is None, "the tree has too many nodes")


def learn_lags(windows: Windows, lags: Any) -> None:
    """Add what each lag says, once it is proven: by trees for pairs of devices, or as a copy of an earlier one.

    Between the end of op a and the start of op b run all ops that are after a and before b. So what is proven of these
    alone holds in every schedule, whatever else there is; and what is added may be used by the lags behind it.
    """
    proven: list[Any] = []
    for lag in lags:
        a, b = (whole(lag[key], "an op of a lag") for key in ("from", "to"))
        need(max(a, b) < len(windows.time) and windows.root.later[a] >> b & 1, "the ops of a lag are in no order")
        part = windows.between(a, b)
        if "same" in lag:
            earlier = whole(lag["same"], "the number of a lag")
            need(earlier < len(proven) and part.data() == proven[earlier][0], "a lag is no copy of that which it names")
            least = proven[earlier][1]
        else:
            least = [[whole(each, "a lag") for each in row] for row in lag["least"]]
            need([len(row) for row in least] == [windows.d] * windows.d, "a lag is no table of devices")
            for i, row in enumerate(least):
                for j, each in enumerate(row):
                    if each:
                        close(*part.ends_on(i, j, each), lag["trees"][i][j])
        proven.append((part.data(), least))
        windows.add_lag(a, b, least)


def windows_of(proof: Any, costs: Costs, bits: int) -> Windows:
    """Return what schedules below the threshold of a proof leave open."""
    need(costs.runs_once, "only bounds of latency are proven by time windows")
    threshold = ratio(proof["threshold"])
    need(threshold > 0, "the threshold must be positive")
    return Windows(costs, threshold, bits)


def prove_tree(proof: Any, costs: Costs) -> Fraction:
    """Return the threshold of the proof if all cases of its tree are refuted, by its lags."""
    windows = windows_of(proof, costs, WHOLE_BITS)
    learn_lags(windows, proof.get("lags", ()))
    close(windows, windows.root.copy(), proof["nodes"])
    return windows.bound


class Bounds:
    """A case of a proof by clauses: least and last starts of ops, their devices, and which of two on one is first.

    A literal is ``from v t`` or ``until v t``: op v starts at t or later, or at t or before; ``on v i`` or ``off v i``:
    it is on device i, or not; ``first u v``: where both are on one device, u ends before v starts, or else v before u.
    """

    def __init__(self, windows: Windows, state: State) -> None:
        self.windows, self.tail = windows, state.tail
        self.devices: list[list[int]] = state.devices
        self.low: list[int] = [min(head[i] for i in mine) for head, mine in zip(state.head, self.devices, strict=True)]
        self.high: list[int] = [windows.most] * len(self.low)
        self.first, self.empty = frozenset[tuple[int, int]](), False
        self.group = {v: group for group in windows.groups for v in group}
        for v in windows.order:
            self.end(v)

    def case(self, clause: list[Any]) -> Bounds:
        """Return the case in which all literals of a clause are false."""
        made = shallow(self)
        made.low, made.high, made.devices = list(self.low), list(self.high), list(self.devices)
        for literal in clause:
            made.add(*opposite(*literal))
        return made

    def says(self, kind: str, v: int, x: int) -> bool:
        """Return whether a literal holds."""
        if kind in ("from", "until"):
            return self.low[v] >= x if kind == "from" else self.high[v] <= x
        if kind == "on":
            return self.devices[v] == [x]
        return (v, x) in self.first if kind == "first" else x not in self.devices[v]

    def add(self, kind: str, v: int, x: int) -> None:
        """Let a literal hold; what contradicts it leaves nothing."""
        if kind == "from":
            self.low[v] = max(self.low[v], x)
        elif kind == "until":
            self.high[v] = min(self.high[v], x)
        elif kind == "first":
            self.first |= {(v, x)}
            self.empty |= (x, v) in self.first
        else:
            self.keep(v, [i for i in self.devices[v] if (i == x) == (kind == "on")])
        self.empty |= self.low[v] > self.high[v]

    def keep(self, v: int, left: list[int]) -> None:
        """Leave an op, and those colocated with it, some of its devices."""
        for w in self.group[v] if len(left) < len(self.devices[v]) else ():
            self.devices[w] = left
        self.empty |= not left

    def clause(self, clause: list[Any]) -> None:
        """Let the one literal of a clause hold that is not false."""
        left = [literal for literal in clause if not self.says(*opposite(*literal))]
        if len(left) == 1:
            self.add(*left[0])
        self.empty |= not left

    def end(self, v: int) -> None:
        """Let an op, and the longest path behind it, end in time."""
        rest = {i: self.windows.time[v][i] + self.tail[v][i] for i in self.devices[v]}
        self.keep(v, [i for i, each in rest.items() if self.low[v] + each <= self.windows.most])
        self.add("until", v, self.windows.most - min(rest.values()))

    def arc(self, u: int, v: int) -> None:
        """Let op v start when it has what u, which it reads, has sent it, on devices on which that is possible."""
        move = next(move for w, move in self.windows.before[v] if w == u)
        ways = {(i, j): self.windows.time[u][i] + move[i][j] for i in self.devices[u] for j in self.devices[v]}
        ways = {way: least for way, least in ways.items() if self.low[u] + least <= self.high[v]}
        for op, place in ((u, 0), (v, 1)):
            self.keep(op, [i for i in self.devices[op] if any(way[place] == i for way in ways)])
        if ways:
            self.add("from", v, self.low[u] + min(ways.values()))
            self.add("until", u, self.high[v] - min(ways.values()))

    def order(self, u: int, v: int) -> None:
        """Let one of two ops end before the other starts, or else not both be on one device."""
        for i in [i for i in self.devices[u] if i in self.devices[v]]:
            alone = [w for w in (u, v) if self.devices[w] == [i]]
            ways = [
                (a, b)
                for a, b in ((u, v), (v, u))
                if self.low[a] + self.windows.time[a][i] <= self.high[b] and (b, a) not in self.first
            ]
            for w in alone if not ways else ():
                self.add("off", v if w == u else u, i)
            if len(ways) == 1 and len(alone) == 2:
                ((a, b),) = ways
                self.add("first", a, b)
                self.add("from", b, self.low[a] + self.windows.time[a][i])
                self.add("until", a, self.high[b] - self.windows.time[a][i])

    def work(self, i: int, start: int, end: int) -> None:
        """Let no more of the ops of a device run between two times than there is time; what else they take, outside.

        At the least start or at the last an op has least of its time between the two.
        """
        need(start < end, "the work of a device is between no two times")
        time = {v: self.windows.time[v][i] for v, mine in enumerate(self.devices) if i in mine}
        ends = {v: (min(t, self.low[v] + t - start), min(t, end - self.high[v])) for v, t in time.items()}
        inside = {v: max(0, min(*ends[v], end - start)) for v in time}
        sure = {v for v in time if self.devices[v] == [i]}
        spare = end - start - sum(inside[v] for v in sure)
        self.empty |= spare < 0
        for v, (early, late) in ends.items():
            room = spare + inside[v] * (v in sure)  # what the others leave to it
            if inside[v] > room:
                self.add("off", v, i)
            elif v in sure and end - start > room:
                if early > room:
                    self.add("from", v, end - room)
                if late > room:
                    self.add("until", v, start - time[v] + room)


def opposite(kind: str, v: int, x: int) -> tuple[str, int, int]:
    """Return the literal that holds where another does not."""
    if kind == "first":
        return kind, x, v
    if kind in ("from", "until"):
        return ("until", v, x - 1) if kind == "from" else ("from", v, x + 1)
    return "off" if kind == "on" else "on", v, x


STEPS: dict[str, tuple[Callable[..., None], int]] = {
    "end": (Bounds.end, 1),
    "arc": (Bounds.arc, 2),
    "order": (Bounds.order, 2),
    "work": (Bounds.work, 0),
}
"""What draws conclusions in a proof by clauses, and how many of its arguments, which differ, are ops."""


def prove_clauses(proof: Any, costs: Costs) -> Fraction:
    """Return the threshold of the proof if its clauses, each by those before it, lead to one that is empty.

    A clause holds where the case of which all its literals are false comes to nothing, by steps in turn: each has the
    number of a clause before, or says which arc, end, order or work to draw conclusions from.
    """
    windows, known_so_far = windows_of(proof, costs, QUANTUM_BITS), list[Any]()
    state = windows.root.copy()
    if not windows.settle(state):
        return windows.bound
    root, n = Bounds(windows, state), len(state.devices)
    for literals, steps in proof["clauses"]:
        clause = [(kind, int(v), int(x)) for kind, v, x in literals]
        for kind, v, x in clause:
            need(kind in ("from", "until", "on", "off", "first"), "a literal is unknown")
            need(0 <= v < n and (kind != "first" or (0 <= x < n and v != x)), "a literal is about no op, or one twice")
        case = root.case(clause)
        for step in steps:
            if case.empty:
                break
            if isinstance(step, list):
                act, ops = STEPS[step[0]]
                args = [int(each) for each in step[1:]]
                need(len({v for v in args[:ops] if 0 <= v < n}) == ops, "a step is about no ops, or one twice")
                act(case, *args)
            else:
                case.clause(known_so_far[int(step)])
        need(case.empty, "a clause does not follow by its steps")
        known_so_far.append(clause)
    need(known_so_far and not known_so_far[-1], "the last clause is not empty")
    return windows.bound


class Lattice:
    """The sets of ops that are closed under predecessors, as bits, with sums over each, in integers."""

    def __init__(self, graph: Graph, parts: list[list[int]]) -> None:
        self.parts = parts
        at = {v: part for part, ops in enumerate(self.parts) for v in ops}
        self.needs = [0] * len(self.parts)
        self.tensors = []  # (producing part, mask of the other parts that read it, bytes)
        for tensor, readers in graph.readers.items():
            u, _, size = graph.tensors[tensor]
            mask = 0
            for v in readers:
                if at[v] != at[u]:
                    mask |= 1 << at[v]
                    self.needs[at[v]] |= 1 << at[u]
            if mask:
                self.tensors.append((at[u], mask, size))
        self.full = (1 << len(self.parts)) - 1

    def sets(self, *weights: list[int]) -> dict[int, Any]:
        """Return every closed set -> (sum of each of the weights over it, tensors made in it and read outside, tops).

        Its tops are the parts that no other part of it needs; a closed set that has them has all of it.
        """
        made, read, after = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list), defaultdict(set)
        for t, (u, mask, _) in enumerate(self.tensors):
            made[u].append(t)
            for part in places(mask):
                read[part].append(t)
                after[u].add(part)
        ready = tuple(part for part, needed in enumerate(self.needs) if not needed)
        found: dict[int, Any] = {0: ((0,) * len(weights), (), 0)}
        stack = [(0, ready)]
        while stack:
            ideal, ready = stack.pop()
            sums, live, tops = found[ideal]
            for part in ready:
                grown = ideal | 1 << part
                if grown in found:
                    continue
                gone = {t for t in read[part] if not self.tensors[t][1] & ~grown}
                kept = (*(t for t in live if t not in gone), *made[part])
                added = tuple(a + row[part] for a, row in zip(sums, weights, strict=True))
                found[grown] = added, kept, tops & ~self.needs[part] | 1 << part
                freed = (v for v in after[part] if self.needs[v] & grown == self.needs[v])
                stack.append((grown, (*(v for v in ready if v != part), *freed)))
                if len(found) > MOST_SETS:
                    raise TooLong(f"the proof lists more than {MOST_SETS:,} sets")
        return found


class Ordered:
    """Closed sets in the order of a number each; sets of them are bits, that with the least number the lowest."""

    def __init__(self, figures: dict[int, Any], numbers: list[int], parts: int) -> None:
        self.numbers, self.sets = zip(*sorted(zip(numbers, figures, strict=True)), strict=True)
        self.at = {ideal: at for at, ideal in enumerate(self.sets)}
        self.all = (1 << len(self.sets)) - 1
        columns = zip(*(f"{ideal:0{parts}b}" for ideal in reversed(self.sets)), strict=True)
        self.having = [int("".join(column), 2) for column in columns][::-1]  # those that have each part

    def bits(self, chosen: set[int]) -> int:
        """Return some of the sets."""
        return int("".join("01"[ideal in chosen] for ideal in reversed(self.sets)), 2)

    def below(self, number: int) -> int:
        """Return the sets whose numbers are less than one."""
        return (1 << bisect_left(self.numbers, number)) - 1

    def larger_than(self, parts: int, among: int) -> int:
        """Return those of some sets that have all of some parts."""
        for part in places(parts):
            among &= self.having[part]
        return among

    def listed(self, bits: int) -> Iterator[int]:
        """Yield sets that are given by bits."""
        digits = f"{bits:b}"[::-1]
        at = digits.find("1")
        while at >= 0:
            yield self.sets[at]
            at = digits.find("1", at + 1)


class Covered:
    """The sets that are reached with no more devices of each class than some, for few enough numbers of devices."""

    def __init__(self, orders: list[Ordered], count: tuple[int, ...]) -> None:
        few = math.prod(each + 1 for each in count) <= MOST_VECTORS
        self.orders = orders
        self.by = {vector: [0] * len(orders) for vector in product(*(range(n + 1) for n in count) if few else [()])}

    def by_all(self, vectors: set[tuple[int, ...]]) -> list[int]:
        """Return the sets that need not be reached again by any of some numbers, in each order."""
        found = [order.all for order in self.orders]
        for vector in vectors:
            found = [those & each for those, each in zip(found, self.by.get(vector, [0] * len(found)), strict=True)]
        return found

    def add(self, reached: dict[tuple[int, ...], list[int]]) -> None:
        """Take what is reached with some numbers of devices."""
        for vector, ideals in reached.items():
            bits = [sum(1 << order.at[each] for each in ideals) for order in self.orders]
            for other, by in self.by.items():
                if all(map(le, vector, other)):
                    by[:] = [those | each for those, each in zip(by, bits, strict=True)]


def places(bits: int) -> Iterator[int]:
    """Yield the places of the bits of a number."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


def merged(graph: Graph) -> list[list[int]]:
    """Return the ops that must share a stage, with each other: colocated ones and what lies between them."""
    group: dict[Any, int] = {}
    leader = [group.setdefault(("group", g) if g is not None else v, v) for v, g in enumerate(graph.group)]
    after = defaultdict(set)
    for u, v, _ in graph.edges:
        after[leader[u]].add(leader[v])
    if any(g is not None for g in graph.group):
        reach = {v: reachable(v, after) for v in set(leader)}
        leader = [min([at] + [w for w in reach[at] if at in reach[w]]) for at in leader]
    parts = defaultdict(list)
    for v in graph.order:
        parts[leader[v]].append(v)
    return list(parts.values())


def absorbed(costs: Costs) -> list[list[int]]:
    """Return the parts of the graph, where those that weigh nothing are joined to a neighbour they may always go with.

    Such a part goes with the only one that makes what it reads, alone or with all that read the same, where what these
    make costs no more to move in and out; or with the only one that reads what it makes, where what it reads costs no
    more. It costs that stage nothing, every other no more than before, and runs neither before what it reads nor after
    what reads it: some best schedule has them together.
    """
    graph, devices = costs.graph, range(costs.num_devices)
    total, pipeline = sum(graph.param), costs.objective == "pipeline"
    limits = [costs.hardware.capacity(i, key) for i in devices for key in ("memory_bytes", "cache_bytes")]
    bare = pipeline and all(limit is None or limit >= total for limit in limits)
    parts = dict(enumerate(merged(graph)))
    at = {v: part for part, ops in parts.items() for v in ops}
    maker = {t: at[graph.tensors[t][0]] for t in graph.readers}
    readers = {t: {at[v] for v in those} - {maker[t]} for t, those in graph.readers.items()}
    made, read = ({part: set[int]() for part in parts} for _ in range(2))
    for t, those in readers.items():
        if those:
            made[maker[t]].add(t)
        for part in those:
            read[part].add(t)
    ways = [costs.hardware.io(i) for i in devices] if pipeline else []
    prices = {
        t: [over(size, way[side]) + way[2 + side] for way in ways for side in (0, 1)] or [size]
        for t, size in ((t, graph.tensors[t][2]) for t in readers)
    }

    def no_dearer(some: set[int], others: set[int]) -> bool:
        """Return whether some tensors cost no more than others on any device, in and out."""
        sums = ([sum(each) for each in zip(*(prices[t] for t in those), strict=True)] for those in (some, others))
        return not some or (bool(others) and all(new <= old for new, old in zip(*sums, strict=True)))

    def neighbour(v: int) -> tuple[set[int], int | None]:
        """Return which parts may join a neighbour of v together, and which it is."""
        before, after = {maker[t] for t in read[v]}, {w for t in made[v] for w in readers[t]}
        if len(before) == 1:
            group = {w for t in read[v] for w in readers[t]}
            alike = group <= light and all(read[w] <= read[v] for w in group)
            if alike and no_dearer({t for w in group for t in made[w]}, read[v]):
                return group, before.pop()
            if no_dearer(made[v], {t for t in read[v] if readers[t] == {v}}):
                return {v}, before.pop()
        if len(after) == 1 and no_dearer(read[v], made[v]):
            return {v}, after.pop()
        return set(), None

    light = {v for v in parts if all(set(costs.times[w]) == {0} and (bare or not graph.param[w]) for w in parts[v])}
    stack = sorted(light)
    while stack:
        v = stack.pop()
        group, u = neighbour(v) if v in parts else (set[int](), None)
        if u is None:
            continue
        for w in sorted(group):
            parts[u] += parts.pop(w)
            for t in read[w] | made[w]:
                maker[t] = u if maker[t] == w else maker[t]
                readers[t] = {u if x == w else x for x in readers[t]} - {maker[t]}
            for t in made.pop(w) | read.pop(w):
                made[u] -= {t}
                read[u] -= {t}
                if readers[t]:
                    (made if maker[t] == u else read)[u].add(t)
        stack += sorted(light & ({u} | {maker[t] for t in read[u]} | {w for t in made[u] for w in readers[t]}))
    return list(parts.values())


def reachable(start: int, after: dict[int, set[int]]) -> set[int]:
    """Return what can be reached from a node in one step and more."""
    found, stack = set(), [start]
    while stack:
        for v in after[stack.pop()]:
            if v not in found:
                found.add(v)
                stack.append(v)
    return found


def prove_states(proof: Any, costs: Costs) -> Fraction:
    """Return the threshold of the proof if whole stages below it do not reach the set of all ops."""
    staged = costs.objective in ("pipeline", "memory") and not costs.scattered
    need(staged, "states prove bounds of stages alone, one on each device")
    threshold = ratio(proof["threshold"])
    reached = costs.reached(costs, threshold)
    need(reached is not None, "stages below the threshold reach the set of all ops")
    need(proof["reached"] == reached, f"the proof counts {proof['reached']} sets by stages; there are {reached}")
    return threshold


def reached_states(costs: Costs, threshold: Fraction) -> list[int] | None:
    """Return how many sets 1, 2, ... whole stages below a threshold reach; None if the set of all ops is one."""
    if isinstance(costs, Trained):
        return TrainedStates(Lattice(costs.graph, merged(costs.graph)), costs).reach()
    search = PipelineStates if costs.objective == "pipeline" else MemoryStates
    return search(Lattice(costs.graph, absorbed(costs)), costs, threshold).reach()


class Shared:
    """The parameters that ops of several parts of a graph share, of which each part counts its share of readers."""

    def __init__(self, graph: Graph, parts: list[list[int]]) -> None:
        self.rows: list[tuple[int, Any, list[Any]]] = []  # (mask of the parts that read it, bytes, what each counts)
        for size, readers in graph.shared:
            counts = [size * len(readers.intersection(ops)) / len(readers) for ops in parts]
            self.rows.append((sum(1 << p for p, count in enumerate(counts) if count), size, counts))

    def numbers(self) -> list[Any]:
        """Return all bytes that are counted."""
        return [x for _, size, counts in self.rows for x in (size, *counts)]

    def scale(self, factor: int) -> None:
        """Count in other units, in which all bytes are whole."""
        self.rows = [(mask, int(size * factor), [int(x * factor) for x in counts]) for mask, size, counts in self.rows]

    def beyond(self, inside: int) -> Any:
        """Return the bytes that a stage of some parts holds beyond what these count."""
        return sum(
            size - sum(counts[part] for part in places(inside & mask))
            for mask, size, counts in self.rows
            if inside & mask
        )


class PipelineStates:
    """What a number of stages of cost below a threshold can reach, in any order of the devices."""

    def __init__(self, lattice: Lattice, costs: Costs, threshold: Fraction) -> None:
        self.lattice, hardware, parts = lattice, costs.hardware, lattice.parts
        self.expired, self.most_pairs = costs.expired, costs.most_pairs
        rows: list[Any] = []
        for i in range(costs.num_devices):
            rate_in, rate_out, delay_in, delay_out = hardware.io(i)
            times = [costs.times[v][i] for v in range(len(costs.times))]
            works = [None if None in (part := [times[v] for v in ops]) else sum(part) for ops in parts]
            enter = [over(size, rate_in) + delay_in for _, _, size in lattice.tensors]
            leave = [over(size, rate_out) + delay_out for _, _, size in lattice.tensors]
            cache, memory = hardware.capacity(i, "cache_bytes"), hardware.capacity(i, "memory_bytes")
            spill = None if cache is None or rate_in == INF else (cache, over(Fraction(1), rate_in))
            rows.append((works, enter, leave, spill, None if memory is None else memory * CAPACITY))
        self.classes = [row for i, row in enumerate(rows) if rows.index(row) == i]
        self.count = tuple(rows.count(row) for row in self.classes)
        self.param: list[Any] = [sum((costs.graph.part[v] for v in ops), ZERO) for ops in parts]
        self.shared = Shared(costs.graph, parts)
        self.banned = [sum(1 << p for p, work in enumerate(row[0]) if work is None) for row in self.classes]
        self.to_whole_numbers(threshold)

    def to_whole_numbers(self, threshold: Fraction) -> None:
        """Scale all seconds, and all bytes, to whole numbers; None stays."""
        seconds = [threshold] + [x for row in self.classes for part in row[:3] for x in part if x is not None]
        byte_counts = self.param + self.shared.numbers()
        for _, _, _, spill, memory in self.classes:
            byte_counts += ([] if spill is None else [spill[0]]) + ([] if memory is None else [memory])
        bytes_scale = math.lcm(*(x.denominator for x in byte_counts))
        seconds += [row[3][1] / bytes_scale for row in self.classes if row[3] is not None]
        scale = common_multiple(seconds, MOST_BITS // len(seconds))
        if not scale:
            raise TooLong("the times have too many digits")

        def whole(values: Any) -> list[Any]:
            return [None if x is None else int(x * scale) for x in values]

        self.threshold = int(threshold * scale)
        self.param = [int(x * bytes_scale) for x in self.param]
        self.shared.scale(bytes_scale)
        self.classes = [
            (
                *map(whole, row[:3]),
                None if row[3] is None else (int(row[3][0] * bytes_scale), int(row[3][1] / bytes_scale * scale)),
                None if row[4] is None else math.floor(row[4] * bytes_scale),
            )
            for row in self.classes
        ]

    def reach(self) -> list[int] | None:
        """Return how many sets are first reached with 1, 2, ... stages; None if the set of all ops is one of them."""
        lattice, k = self.lattice, sum(self.count)
        works = [[each or 0 for each in row[0]] for row in self.classes]
        least = [
            min(each for each in column if each is not None)
            for column in zip(*(row[0] for row in self.classes), strict=True)
        ]
        figures = lattice.sets(least, self.param, *works)
        enter, leave = (
            [min(each) for each in zip(*(row[side] for row in self.classes), strict=True)] for side in (1, 2)
        )
        rows = figures.values()
        numbers = [[row[0][0] + sum(leave[t] for t in row[1]) for row in rows], [row[0][1] for row in rows]]
        orders = [Ordered(figures, each, len(lattice.parts)) for each in numbers]
        tensors = [
            (enter[t], leave[t], orders[0].having[made] & ~orders[0].larger_than(readers, orders[0].all))
            for t, (made, readers, _) in enumerate(lattice.tensors)
        ]
        start, covered, most_bytes = (0,) * len(self.count), Covered(orders, self.count), self.most_bytes()
        used, seen, counts, pairs = {0: {start}}, defaultdict(set, {0: {start}}), [], 0
        for stage in range(1, k + 1):
            left = self.left(k - stage, *figures[lattice.full][0][:2])
            fits = {at for at, row in figures.items() if left(*row[0][:2])}
            among, following = [order.bits(fits) for order in orders], defaultdict(set)
            for ideal, vectors in used.items():
                need(not self.expired(), "the search has no time left")
                done, held = figures[ideal][0][:2]
                found = [
                    order.larger_than(figures[ideal][2], those) for order, those in zip(orders, among, strict=True)
                ]
                costly = sorted((tensors[t] for t in figures[ideal][1]), reverse=True)
                found[0] = self.affordable(orders[0], costly, found[0], done + self.threshold)
                found[1] &= orders[1].below(held + most_bytes + 1)
                reached = defaultdict(list)
                for c, most in enumerate(self.count):
                    longer = {(*v[:c], v[c] + 1, *v[c + 1 :]) for v in vectors if v[c] < most}
                    left_over = [those & ~again for those, again in zip(found, covered.by_all(longer), strict=True)]
                    key = min((0, 1), key=lambda key: left_over[key].bit_count())
                    pairs += left_over[key].bit_count()
                    if pairs > self.most_pairs:
                        raise TooLong(f"the proof compares more than {self.most_pairs:,} pairs of sets")
                    for grown in orders[key].listed(left_over[key]):
                        if grown != ideal and self.is_below(ideal, grown, c, figures):
                            for vector in longer:
                                if not any(all(map(le, other, vector)) for other in seen[grown]):
                                    seen[grown].add(vector)
                                    following[grown].add(vector)
                                    reached[vector].append(grown)
                covered.add(reached)
            if lattice.full in following:
                return None
            counts.append(len(following))
            used = following
        return counts

    def affordable(self, order: Ordered, tensors: list[Any], among: int, end: int, split: int = 16) -> int:
        """Return the sets that a stage below the threshold may reach, and some more; `tensors` are live before it.

        Work and what is live after it are below the threshold and the work before it. Of what is live before it, the
        stage gets what is live no more, and does not send again what still is; so many tensors are told apart.
        """
        among &= order.below(end + sum(each[1] for each in tensors))
        if not tensors or not split or among.bit_count() < FEW:
            return among
        (enter, leave, live), *rest = tensors
        gone = self.affordable(order, rest, among & ~live, end - enter, split - 1)
        return gone | self.affordable(order, rest, among & live, end + leave, split - 1)

    def most_bytes(self) -> int:
        """Return the most bytes of parameters that a stage below the threshold may hold."""
        limits = []
        for _, _, _, spill, memory in self.classes:
            streamed = INF if spill is None else spill[0] + self.threshold // spill[1]
            limits.append(streamed if memory is None else min(streamed, memory))
        return int(max(limits)) if max(limits) != INF else int(sum(self.param))

    def left(self, stages: int, work: int, param: int) -> Any:
        """Return whether what a closed set leaves, of (least work, bytes), may fit into a number of stages.

        Each costs less than the threshold, so all together do; what exceeds their caches overflows at the best rate.
        """
        spills = [row[3] for row in self.classes]
        rate = 0 if None in spills else min(spill[1] for spill in spills)
        caches = (
            sorted((s[0] for s, n in zip(spills, self.count, strict=True) for _ in range(n)), reverse=True)
            if rate
            else []
        )
        cache, room = sum(caches[:stages]), stages * self.threshold

        def fits(done: int, held: int) -> bool:
            if stages == 0:
                return (done, held) == (work, param)
            return bool(work - done + rate * max(0, param - held - cache) < room)

        return fits

    def is_below(self, ideal: int, grown: int, c: int, figures: Any) -> bool:
        """Return whether a stage from one closed set to another is below the threshold on a class of devices."""
        (_, param_before, *before), live_before, _ = figures[ideal]
        (_, param_after, *after), live_after, _ = figures[grown]
        _, enter, leave, spill, memory = self.classes[c]
        inside, tensors = grown & ~ideal, self.lattice.tensors
        param = param_after - param_before + self.shared.beyond(inside)
        cost = after[c] - before[c]
        if spill is not None and param > spill[0]:
            cost += (param - spill[0]) * spill[1]
        if cost >= self.threshold or (memory is not None and param > memory):
            return False
        cost += sum(enter[t] for t in live_before if tensors[t][1] & inside)
        cost += sum(leave[t] for t in live_after if inside >> tensors[t][0] & 1)
        return not (cost >= self.threshold or inside & self.banned[c])


class MemoryStates:
    """What the first stages of a `memory` problem can reach within the values of the levels before."""

    def __init__(self, lattice: Lattice, costs: Costs, threshold: Fraction) -> None:
        self.lattice, self.level, hardware, graph = lattice, costs.level, costs.hardware, costs.graph
        self.expired, self.most_pairs = costs.expired, costs.most_pairs
        param = [sum((graph.part[v] for v in ops), ZERO) for ops in lattice.parts]
        self.shared = Shared(graph, lattice.parts)
        peak = [threshold, *costs.values][0 if costs.level == 0 else 1]
        limits = [hardware.capacity(i, "memory_bytes") for i in range(costs.num_devices)]
        caches = [hardware.capacity(i, "cache_bytes") for i in range(costs.num_devices)]
        total = threshold if costs.level == 1 else costs.values[1]
        sizes = [size for _, _, size in lattice.tensors]
        known = [
            x
            for x in (*param, *self.shared.numbers(), *limits, *caches, *sizes, peak, total, threshold)
            if x is not None
        ]
        scale = math.lcm(*(Fraction(x).denominator for x in known))
        self.param = [int(x * scale) for x in param]
        self.shared.scale(scale)
        self.sizes = [int(x * scale) for x in sizes]
        self.caches: list[Any] = [None if x is None else int(x * scale) for x in caches]
        # The most bytes that a stage may hold, that all may stream, and that one may send, all inclusive.
        top = int(peak * scale) - (costs.level == 0)
        self.most = [top if x is None else min(top, math.floor(x * CAPACITY * scale)) for x in limits]
        self.streamed = int(total * scale) - (costs.level == 1) if costs.level else None
        self.sent = int(threshold * scale) - 1 if costs.level == 2 else None
        self.banned = [
            sum(1 << p for p, ops in enumerate(lattice.parts) if any(costs.times[v][i] is None for v in ops))
            for i in range(costs.num_devices)
        ]

    def reach(self) -> list[int] | None:
        """Return how many sets 1, 2, ... stages can reach; None if the set of all ops is one after the last."""
        lattice, k = self.lattice, len(self.most)
        figures = lattice.sets(self.param)
        order = Ordered(figures, [row[0][0] for row in figures.values()], len(lattice.parts))
        whole = order.numbers[-1]
        reached, counts, pairs = {0: 0}, [], 0
        for i in range(k):
            following: dict[int, int] = {}
            among = order.all & ~order.below(whole - sum(self.most[i + 1 :]))
            free = None if None in self.caches[i + 1 :] else sum(self.caches[i + 1 :])
            for ideal, streamed in reached.items():
                need(not self.expired(), "the search has no time left")
                held = figures[ideal][0][0]
                found = order.larger_than(figures[ideal][2], among & order.below(held + self.most[i] + 1))
                pairs += found.bit_count()
                if pairs > self.most_pairs:
                    raise TooLong(f"the proof compares more than {self.most_pairs:,} pairs of sets")
                for grown in order.listed(found):
                    total = figures[grown][0][0]
                    if grown & ~ideal & self.banned[i]:
                        continue
                    holds = total - held + self.shared.beyond(grown & ~ideal)
                    if holds > self.most[i]:
                        continue
                    spare = 0 if self.caches[i] is None else max(0, holds - self.caches[i])
                    later = 0 if free is None else max(0, whole - total - free)
                    if self.streamed is not None and streamed + spare + later > self.streamed:
                        continue
                    if self.sent is not None and self.sends(ideal, figures[grown][1]) > self.sent:
                        continue
                    if grown not in following or following[grown] > streamed + spare:
                        following[grown] = streamed + spare
            reached = following
            counts.append(len(reached))
        return None if lattice.full in reached else counts

    def sends(self, ideal: int, live: Any) -> int:
        """Return the bytes that a stage sends: what is live after it and was not made before it."""
        return sum(self.sizes[t] for t in live if not ideal >> self.lattice.tensors[t][0] & 1)


def prove_zero(proof: Any, costs: Any) -> Fraction:
    """Return 0: no value is below it."""
    return ZERO


# -- plans without a schedule --------------------------------------------------------------------------------------


def spreads_of(costs: Costs, ops: Any) -> list[tuple[int, ...]]:
    """Return the ways to spread the shards of ops, which are together, over devices: how many each has, in one batch.

    Of an objective without shards each op is one. Where there are more ways than `MOST_SPREADS`, one shard is on each
    device that may have some.
    """
    graph, able = costs.graph, list[list[int]]()
    # What is there while one of them runs.
    bare = sum((costs.held[v] - graph.part[v] for v in ops), ZERO)
    bare += max(sum((costs.stays[v] for v in ops), ZERO), max(costs.beside[v] for v in ops))
    for i, room in enumerate(costs.room):
        common = set.intersection(*(set(costs.counts[v][i]) for v in ops))
        able.append([n for n in sorted(common) if graph.bytes_of(ops) + n * bare <= room])
    total = costs.num_shards if costs.objective == "throughput" else 1
    found: list[tuple[int, ...]] = [()]
    for counts in able:
        found = [(*way, n) for way in found for n in (*reversed(counts), 0) if sum(way) + n <= total]
        if len(found) > MOST_SPREADS:
            return [tuple(int(i == j) for i in costs.devices) for j in costs.devices if able[j]]
    return [way for way in found if sum(way) == total]


def share(costs: Costs, v: int, i: int, shards: int, runs: int = -1) -> Fraction:
    """Return the part of a device's memory that so many shards of an op take at the end, or while an op runs there."""
    part, room = costs.graph.part[v], costs.room[i]
    beside = costs.stays[v] if runs < 0 else costs.beside[v] if runs == v else ZERO
    size = part + (costs.held[v] - part + beside) * shards
    return ZERO if room == INF or not size else size / room


def shares_of_memory(costs: Costs) -> list[list[Any]]:
    """Return the part of each device's memory that all shards of an op take; None where none may be.

    Ops may be on several devices, but what they hold is then no less in all.
    """
    total = costs.num_shards
    found: list[list[Any]] = [[None] * costs.num_devices for _ in costs.graph.ops]
    for ops in costs.graph.groups:
        for i, counts in enumerate(zip(*spreads_of(costs, ops), strict=True)):
            for v in ops if any(counts) else ():
                found[v][i] = share(costs, v, i, total)
    return found


def linked(costs: Costs, sent: tuple[int, ...], received: tuple[int, ...]) -> bool:
    """Return whether paths link the shards that each device has to as many that another op has of them.

    Of an op one shard of which stands for all, these are fewer.
    """
    columns = zip(*costs.paths, strict=True)
    return all(
        sum(few) > sum(many) or n <= sum(m for m, path in zip(many, row, strict=True) if path)
        for few, many, rows in ((sent, received, costs.paths), (received, sent, columns))
        for n, row in zip(few, rows, strict=True)
    )


def prove_room(proof: Any, costs: Costs) -> Fraction:
    """Return that no value is small enough, where the ops do not fit into all memories together."""
    shares = shares_of_memory(costs)
    if all(set(row) != {None} for row in shares):
        need(balanced(proof["multipliers"], shares) > 1, "the memories may hold all ops")
    endless: Fraction = INF
    return endless


def count_places(costs: Costs) -> int | None:
    """Return how many ways to put ops, those that are colocated at once, on devices are looked at; None if one fits.

    The largest come first. What a device holds, at the end or while one of its ops runs, is no more than its memory;
    paths link those between which tensors move. Of devices that are alike and hold nothing, one is tried.
    """
    graph, placed = costs.graph, costs.objective in ("latency", "throughput")
    groups = sorted(graph.groups, key=lambda ops: -sum(costs.held[v] for v in ops))
    spreads = [spreads_of(costs, ops) for ops in groups]
    at = {v: g for g, ops in enumerate(groups) for v in ops}
    pairs = {(at[u], at[v]) for u, v, _ in graph.edges if placed and 0 in chain(*costs.hardware.rate)}
    able = [[{way[i] for way in ways} for ways in spreads] for i in costs.devices]
    like = [(costs.room[i], able[i], i if pairs else 0) for i in costs.devices]
    stack, count = [list[tuple[int, ...]]()], 0
    while stack:
        where, tried = stack.pop(), list[Any]()
        if len(where) == len(groups):
            return None
        count += 1
        if count > MOST_SETS:
            raise TooLong(f"the proof looks at more than {MOST_SETS:,} ways to put ops on devices")
        used = [any(way[i] for way in where) for i in costs.devices]
        for way in spreads[len(where)]:
            form = [(i if used[i] else like.index(like[i]), used[i], n) for i, n in enumerate(way) if n]
            if sorted(form) in tried:
                continue
            tried.append(sorted(form))
            grown = [*where, way]
            ends = ((grown[u], grown[v]) for u, v in pairs if max(u, v) < len(grown))
            fits = all(_fits(costs, groups, grown, i) for i, n in enumerate(way) if n)
            if fits and all(linked(costs, *pair) for pair in ends):
                stack.append(grown)
    return count


def _fits(costs: Costs, groups: Any, where: list[tuple[int, ...]], i: int) -> bool:
    """Return whether a device holds the shards of groups that are on it."""
    graph, shards = costs.graph, {v: way[i] for ops, way in zip(groups, where, strict=False) for v in ops if way[i]}
    bytes_on = graph.bytes_of(shards) + sum(n * (costs.held[v] - graph.part[v]) for v, n in shards.items())
    stay = sum(n * costs.stays[v] for v, n in shards.items())
    bytes_on += max(stay, *(n * costs.beside[v] for v, n in shards.items()))
    placed_at = {v: way.index(1) for ops, way in zip(groups, where, strict=False) for v in ops if costs.microbatches}
    for t, readers in graph.readers.items() if costs.microbatches else ():
        on = placed_at.get(graph.tensors[t][0])
        others = {placed_at[v] for v in readers if v in placed_at} - {on}
        if on is not None and others:
            bytes_on += graph.tensors[t][2] * (costs.microbatches * (i == on or i in others) + (i in others))
    return bool(bytes_on <= costs.room[i])


def prove_places(proof: Any, costs: Costs) -> Fraction:
    """Return that no value is small enough, where no way to put ops on devices respects memories, groups and links."""
    count = count_places(costs)
    need(count is not None, "the ops can be put on devices")
    need(proof["places"] == count, f"the proof counts {proof['places']} ways to put ops on devices; there are {count}")
    endless: Fraction = INF
    return endless


def horizon(costs: Costs | Groups) -> Fraction:
    """Return more than the value of some schedule, if there is one: all ops on every device, and all transfers.

    Of stages of several devices, no end: their proof knows by itself what is more than any value.
    """
    if isinstance(costs, Groups):
        endless: Fraction = INF
        return endless
    graph, hardware, devices = costs.graph, costs.hardware, range(costs.num_devices)
    everything: Fraction = sum(graph.param, ONE)
    if costs.objective == "memory":
        return everything
    total: Fraction = sum((each for row in costs.times for each in row if each is not None), ONE)
    if costs.objective == "pipeline":
        for rate_in, rate_out, delay_in, delay_out in map(hardware.io, devices):
            moves = (over(size, rate_in) + over(size, rate_out) + delay_in + delay_out for _, _, size in graph.tensors)
            total += sum(moves, over(everything, rate_in))
        return total
    moves = (hardware.transfer(i, j, graph.tensors[t][2]) for _, _, t in graph.edges for i in devices for j in devices)
    return sum((seconds for seconds in moves if seconds != INF), total)


def check_infeasible(plan: Any, graph: Graph, hardware: Hardware, certificate: Any, reached: Any = None) -> str:
    """Return the line that says that there is no schedule, after checking the proof."""
    need_known(plan)
    need(not any(plan.get(key) for key in SCHEDULE_KEYS), "the plan is infeasible, but says something of a schedule")
    rules = plan.get("transfer_rule", "parallel"), plan.get("resident", "tensors")
    placed = plan["objective"] in ("latency", "throughput")
    need(placed or rules == ("parallel", "tensors"), "rules of transfers and memory are of placements")
    need(plan.get("training") or not any("backward_of" in row for row in graph.ops), "backward ops are of training")
    need(certificate is not None, "the plan has no schedule, and nothing here proves that there is none")
    check_certificate(plan, certificate, 1)
    (row,) = certificate["levels"]
    need(row is not None, f"that there is no schedule rests on {', '.join(certificate['trusted'])}")
    costs = costs_of(plan, graph, hardware, 0, (ZERO,) * 3)
    if reached and isinstance(costs, Costs) and not isinstance(costs, Trained):
        costs.reached = reached
    need(prove(row, costs) >= horizon(costs), "the proof leaves room for a schedule")
    return f"VERIFIED (exact) {question(plan)}: infeasible"


PROOFS: dict[str, Callable[[Any, Costs], Fraction]] = {
    "zero": prove_zero,
    "op": prove_op,
    "load": prove_load,
    "packing": prove_packing,
    "quantum": prove_quantum,
    "states": prove_states,
    "tree": prove_tree,
    "clauses": prove_clauses,
    "room": prove_room,
    "places": prove_places,
}


# -- training pipelines without a schedule -------------------------------------------------------------------------


class Trained(Costs):
    """A training pipeline, of which bytes alone are looked at: its forward ops with what their backward ops hold.

    A stage with f micro-batches in flight, of which g drop what recomputed blocks save, takes

        parameters and optimiser + f made - g saved + largest saved + (m + 1) before + m after + largest width

    where `before` and `after` are the bytes that cross its ends, and the width of an op the tensors alive around it.
    """

    def __init__(self, plan: Any, graph: Graph, hardware: Hardware, level: int, values: tuple[Fraction, ...]) -> None:
        rules = plan["training"]
        known(rules, TRAINING_KEYS, "training")
        self.schedule, self.recompute = rules["schedule"], rules["recompute"]
        microbatches, factor = whole(rules["microbatches"], "microbatches", 1), number(rules, "state_factor")
        sound = self.schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble") and factor >= 1
        sound = sound and self.recompute in ("none", "auto", "all") and plan.get("contiguous", True)
        need(sound and (self.schedule == "interleaved") == (plan.get("chunks", 1) > 1), "unknown training")
        need(not any(rules.get(key) for key in ("step_s", "stages", "exchange_bytes")), "training without a schedule")
        super().__init__(plan, forward_ops(graph, factor), hardware, level, values)
        rows, graph, widths, self.microbatches = graph.ops, self.graph, widths_of(self.graph), microbatches
        self.blocks, saved = [] if self.recompute == "none" else saved_by_blocks(graph, rows), [ZERO] * len(graph.ops)
        for t in chain(*(tensors for _, tensors in self.blocks)):
            saved[graph.tensors[t][0]] += graph.tensors[t][2]
        least = min(self.flying(remaining)[0] for remaining in range(1, self.num_devices + 1))
        kept = [least * (made - less) for made, less in zip(graph.made, saved, strict=True)]
        self.held, self.beside = [p + k for p, k in zip(graph.part, kept, strict=True)], widths

    def flying(self, remaining: int) -> tuple[int, int]:
        """Return f and g of a stage from which on so many, with itself, have ops."""
        m, k = self.microbatches, self.num_devices
        if self.schedule == "zero-bubble":
            return min(m, k) + min(m, k - remaining), min(m, remaining)
        return (m, m) if self.schedule == "gpipe" else (min(m, remaining), min(m, remaining))


def forward_ops(graph: Graph, factor: Fraction) -> Graph:
    """Return the forward ops of a graph, with what they and their backward ops hold of parameters and optimiser.

    Gradients give an order where no forward edge does.
    """
    at = [graph.at.get(row.get("backward_of", row["name"]), -1) for row in graph.ops]
    need(all(u >= 0 and at[u] == u for u in at), "an op is the backward of no forward op")
    links = defaultdict[int, set[int]](set)
    for ops in graph.groups:
        for v in ops:
            links[at[v]] |= {at[w] for w in ops} if len(ops) > 1 else set()
    rows: dict[int, Any] = {}
    for v in sorted(range(len(at)), key=lambda v: at[v] != v):
        row = rows.setdefault(at[v], {**graph.ops[v], "shared": {}, "forbidden": []})
        row["param_bytes"] = factor * graph.bytes_of(w for w, u in enumerate(at) if u == at[v])
        row["shared"] |= {name: factor * size for name, size in graph.ops[v].get("shared", {}).items()}
        row["forbidden"] = [*row["forbidden"], *graph.ops[v].get("forbidden", ())]
        if links[at[v]]:
            row["colocate"] = min(reachable(at[v], links))
    ahead: Any = {(u, v): graph.tensors[t] for u, v, t in graph.edges if at[u] == u and at[v] == v}
    edges = [[*pair, size if name[:3] == "-> " else name] for pair, (_, name, size) in ahead.items()]
    back = {(at[v], at[u]) for u, v, _ in graph.edges if at[u] != u and at[v] != v and at[u] != at[v]} - ahead.keys()
    edges += [[u, v, ZERO] for u, v in sorted(back) if (v, u) not in ahead]
    named_edges = [[graph.names[u], graph.names[v], label] for u, v, label in edges]
    return Graph({"ops": [rows[v] for v in sorted(rows)], "edges": named_edges})


def widths_of(graph: Graph) -> list[Fraction]:
    """Return the bytes of tensors alive around each op in the natural order, up to the last reader, or else the end."""
    place = {v: at for at, v in enumerate(graph.order)}
    change = [ZERO] * (len(graph.ops) + 1)
    for t, (u, _, size) in enumerate(graph.tensors):
        change[place[u]] += size
        change[max((place[v] for v in graph.readers.get(t, ())), default=len(place) - 1) + 1] -= size
    alive = list(accumulate(change))
    return [alive[place[v]] for v in range(len(graph.ops))]


def saved_by_blocks(graph: Graph, rows: list[Any]) -> list[tuple[set[int], list[int]]]:
    """Return the ops of each block that may be computed again, and the tensors that it need not keep then.

    These are the repeated layers, or else innermost modules, but those that a path leaves and enters again.
    """
    paths = ["" if row.get("op") == "input" else module_of(row) for row in rows]
    siblings, inside = defaultdict[Any, set[str]](set), dict[str, list[str]]()
    for path in paths:
        parts = path.split(".") if path else []
        inside[path] = [".".join(parts[: end + 1]) for end in range(len(parts))]
        for prefix in inside[path]:
            parent, _, name = prefix.rpartition(".")
            if numbered := re.fullmatch(r"(?:(?P<base>.*_))?\d+[a-z]?", name):
                siblings[parent, numbered["base"] or ""].add(prefix)
    repeated = {prefix for those in siblings.values() if len(those) > 1 for prefix in those}
    containers = {prefix for around in inside.values() for prefix in around[:-1]}
    of = [next((p for p in inside[path] if p in repeated), "" if path in containers else path) for path in paths]
    forward = set(graph.names)
    block = [name for row, name in zip(rows, of, strict=True) if row["name"] in forward]
    left, place = [set[str]() for _ in block], graph.order.index
    for u, v, _ in sorted(graph.edges, key=lambda edge: place(edge[0])):
        left[v] |= left[u] | {block[u]} - {block[v]}  # blocks that a path to the op has left
    broken = {name for name, gone in zip(block, left, strict=True) if name in gone} | {""}
    found: Any = {name: ({v for v, other in enumerate(block) if other == name}, []) for name in {*block} - broken}
    for t, readers in graph.readers.items():
        name = block[graph.tensors[t][0]]
        if name in found and {block[v] for v in readers} == {name}:
            found[name][1].append(t)
    return list(found.values())


def module_of(row: Any) -> str:
    """Return the path of an op's innermost module, or what its node's or its own name says of it."""
    given = row.get("module")
    if given is not None:
        return str(given[-1] if isinstance(given, list) and given else given or "")
    if row.get("scopes"):
        return str(row["scopes"][-1][0])
    scope, _, name = str(row.get("node") or row["name"]).strip("/").replace("/", ".").rpartition(".")
    block = re.match(r"(?P<base>(?:\w+?_)?(?:block|layer|unit|cell))_?(?P<number>\d+[a-z]?)_\w", name)
    return ".".join(part for part in (scope, f"{block['base']}_{block['number']}" if block else "") if part)


class TrainedStates:
    """What 1, 2, ... stages of a training pipeline can be, from the last one on: closed sets left, devices taken."""

    def __init__(self, lattice: Lattice, costs: Trained) -> None:
        self.lattice, self.costs, parts = lattice, costs, lattice.parts
        at = {v: part for part, ops in enumerate(parts) for v in ops}
        banned = [sum({1 << at[v] for v in at if costs.times[v][i] is None}) for i in costs.devices]
        rows = list(zip(costs.room, banned, strict=True))
        self.classes = list(dict.fromkeys(rows))
        self.count = [rows.count(row) for row in self.classes]
        self.width = [max(costs.beside[v] for v in ops) for ops in parts]
        graph = costs.graph
        self.sums: list[Any] = [[sum(row[v] for v in ops) for ops in parts] for row in (graph.part, graph.made)]
        self.shared = Shared(graph, parts)
        blocks = (
            (sum({1 << at[v] for v in ops}), sum(graph.tensors[t][2] for t in tensors)) for ops, tensors in costs.blocks
        )
        self.blocks = sorted((block for block in blocks if block[1]), key=lambda block: block[1])

    def reach(self) -> list[int] | None:
        """Return how many closed sets 1, 2, ... stages leave; None if that of no ops is one of them."""
        lattice, costs = self.lattice, self.costs
        self.figures = figures = lattice.sets(*self.sums)
        order = Ordered(figures, [row[0][0] for row in figures.values()], len(lattice.parts))
        crossing = {ideal: sum(lattice.tensors[t][2] for t in row[1]) for ideal, row in figures.items()}
        used, most, counts, pairs = {lattice.full: {(0,) * len(self.count)}}, max(costs.room), list[int](), 0
        for behind in range(1, costs.num_devices + 1):
            need(not costs.expired(), "the search has no time left")
            (f, g), reached, following = costs.flying(behind), order.bits(set(used)), defaultdict[int, set[Any]](set)
            for ideal, row in figures.items():
                among = reached if most == INF else reached & order.below(row[0][0] + most + 1)
                among = order.larger_than(row[2], among)
                pairs += among.bit_count()
                if pairs > costs.most_pairs // len(lattice.parts):
                    raise TooLong("the proof compares too many pairs of sets")
                for grown in order.listed(among):
                    inside = grown & ~ideal
                    size = (costs.microbatches + 1) * crossing[ideal] + costs.microbatches * crossing[grown]
                    size += self.takes(ideal, grown, f, g) if inside else INF
                    for c, (room, banned) in enumerate(self.classes):
                        if inside and size <= room and not inside & banned:
                            grouped = (v for v in used[grown] if v[c] < self.count[c])
                            following[ideal] |= {(*v[:c], v[c] + 1, *v[c + 1 :]) for v in grouped}
            if not lattice.full or 0 in following:
                return None
            counts.append(len(following))
            used = following
        return counts

    def takes(self, ideal: int, grown: int, f: int, g: int) -> Fraction:
        """Return the bytes of a stage, from one closed set to another, beside those that cross its ends."""
        inside = grown & ~ideal
        state, made = (b - a for a, b in zip(self.figures[ideal][0], self.figures[grown][0], strict=True))
        whole = [saved for mask, saved in self.blocks if mask & inside == mask]
        sums = [ZERO, *(saved - g * total for saved, total in zip(whole, accumulate(whole), strict=True))]
        again = sums[-1] if self.costs.recompute == "all" else min(sums)
        width = max(self.width[part] for part in places(inside))
        return Fraction(state + self.shared.beyond(inside) + f * made + again + width)


# -- stages of several devices -------------------------------------------------------------------------------------


class Option(NamedTuple):
    """A way to run an op on a group of devices: seconds, and bytes of each device of the group.

    Bytes of parameters, for each micro-batch in flight, once, and once in all replicas; an edge to a neighbour takes
    `gather` if it leaves the stage.
    """

    name: str
    time: Any
    param: Any
    held: Any
    fixed: Any
    shared: Any
    gather: dict[int, Any]


class Groups:
    """Stages of several devices as a plan asks for them: forms, replicas, options of ops, and what a stage takes.

    A form is a degree t and a kind of devices, by its number; all devices of a stage are of one kind, and so are nodes,
    blocks, and rates of gathers and exchanges. Tensors take the slowest link of all.

    With t devices in each of d replicas that take n of N micro-batches, and y in flight, a stage of some options takes

        seconds   (time + gathers and moves of what enters or leaves it) n / N + exchange(t, d) param / d
        bytes     held y + fixed + shared n / N, of the `room` that t leaves

    where n = N / d. Mixed replicas may be on several kinds, d in all, and N / d need not be whole: each takes n of N,
    with d n >= N on one kind; on several the sum of d n over kinds is N or more, options are each kind's own, param is
    the most that any option of the op has at t, and shared is held as d or as N / n share it, whichever is more.
    """

    def __init__(self, plan: Any, graph: Graph, hardware: Hardware) -> None:
        rules, devices = plan["groups"], hardware.devices
        known(rules, GROUP_KEYS, "groups")
        self.graph, self.objective, self.level = graph, "pipeline", 0
        self.expired: Callable[[], bool] = lambda: False
        self.training, self.recompute = rules["training"], rules.get("recompute", "auto")
        self.uniform, self.volumes = rules.get("uniform", False), rules.get("exchange", "ring")
        sound = self.training in ("", "gpipe", "1f1b") and self.recompute in ("none", "auto", "all")
        sound = sound and self.volumes in ("ring", "zero2", "zero3", "server") and self.uniform in (True, False)
        self.mixed = rules.get("mixed", False)
        sound = sound and self.mixed in (True, False) and not (self.mixed and self.uniform)
        need(sound, "groups ask for an unknown way of training, recomputing or exchanging")
        places = defaultdict[Any, list[int]](list)
        for i, row in enumerate(devices):
            places[row.get("kind", "")].append(i)
        alike = [[{**devices[i], "name": "", "node": ""} for i in mine] for mine in places.values()]
        need(all(row == rows[0] for rows in alike for row in rows), "devices of stages of one kind must be alike")
        self.kinds, self.counts = list(places), [len(mine) for mine in places.values()]
        self.kind_at = {i: k for k, mine in enumerate(places.values()) for i in mine}
        bound = [row["name"] for row in graph.ops if row.get("colocate") is not None or row.get("forbidden")]
        need(not bound, "ops of stages of several devices are neither colocated nor forbidden anywhere")
        self.num_devices, self.nodes = len(devices), [row.get("node", "") for row in devices]
        self.microbatches = whole(rules["microbatches"], "microbatches", 1)
        self.most_replicas = min(self.num_devices, self.microbatches)
        asked = whole(rules.get("replicas", ZERO), "replicas")
        counts = [asked] if asked else range(1, self.most_replicas + 1)
        divides = [self.mixed or self.microbatches % d == 0 for d in counts]
        self.replicas = [d for d, sound in zip(counts, divides, strict=True) if sound and d <= self.most_replicas]
        need(self.replicas, f"{asked} replicas do not divide {self.microbatches} micro-batches")
        asked, taken = whole(rules.get("tensor_parallel", ZERO), "tensor_parallel"), rules.get("workspace_bytes", {})
        self.blocks: list[list[int]] = []
        self.room: dict[tuple[int, int], Any] = {}
        for k, mine in enumerate(places.values()):
            node = math.gcd(*Counter(self.nodes[i] for i in mine).values())
            degrees, blocks = self.degrees_of(asked, node), [1]
            for size in range(2, node + 1):
                larger = [node, *(t for t in degrees if t > size)]
                if size % blocks[-1] == 0 and all(each % size == 0 for each in larger):
                    blocks.append(size)
            self.blocks.append(blocks)
            memory = hardware.capacity(mine[0], "memory_bytes")
            free: Any = INF if memory is None else memory - number(devices[mine[0]], "reserve_bytes", ZERO)
            self.room |= {(t, k): max(ZERO, free - number(taken, str(t), ZERO)) * CAPACITY for t in degrees}
        need(self.room, "no degree of a menu divides a node")
        self.forms = sorted(self.room)
        self.passes = 2 if self.training else 1
        whole_rates = self.rates(hardware, list(range(self.num_devices)))
        self.rate = whole_rates[0]
        self.kind_rates = [whole_rates if len(places) == 1 else self.rates(hardware, mine) for mine in places.values()]
        self.delay = max({id(delay): delay for row in hardware.delay for delay in row}.values())
        self.around: list[set[str]] = [set() for _ in graph.ops]
        for u, v, _ in graph.edges:
            self.around[u].add(graph.names[v])
            self.around[v].add(graph.names[u])
        self.options = [{form: self.options_of(v, *form) for form in self.forms} for v in range(len(graph.ops))]
        need(all(isinstance(node, str) for node in self.nodes), "a node is no text")
        for v, row in enumerate(graph.ops):
            for rows in row["menu"].values():  # at degrees that do not count, too
                names = {self.option(v, each, k).name for each in rows for k in range(len(self.kinds))}
                need(rows and len(names) == len(rows), "variants are not unique")
            need(any(self.options[v].values()), f"op {graph.names[v]!r} has no variant at a degree that fits a node")
        self.worth = self.worth_of_kinds()

    def worth_of_kinds(self) -> list[int]:
        """Return numbers about as the speeds of kinds; with any above 0, seconds and devices may be so weighted."""
        none, speeds = None, [ZERO] * len(self.kinds)
        for row in self.options:
            least: list[Any] = [
                min((t * one.time for (t, at), mine in row.items() if at == k for one in mine), default=none)
                for k in range(len(self.kinds))
            ]
            best = min(time for time in least if time is not None)
            for k, time in enumerate(least):
                speeds[k] += ZERO if time is None else Fraction(1) if not time else best / time
        worth = [max(1, round(60 * speed / len(self.options))) for speed in speeds]
        return [each // math.gcd(*worth) for each in worth]

    def degrees_of(self, asked: int, node: int) -> list[int]:
        """Return the degrees that stages may have: that asked for, or those of the menus that divide every node.

        Each is a multiple of those before, so that groups fill nodes.
        """
        menus = [row.get("menu") or {} for row in self.graph.ops]
        need(all(re.fullmatch("[1-9][0-9]{0,4}", t) for menu in menus for t in menu), "a degree of a menu is none")
        fits: list[int] = []
        for t in sorted({int(t) for menu in menus for t in menu}):
            if node % t == 0 and (t == asked if asked else not fits or t % fits[-1] == 0):
                fits.append(t)
        return fits

    def rates(self, hardware: Hardware, mine: list[int]) -> tuple[Any, Any]:
        """Return bytes a second of the slowest links between some devices, and of those inside a node."""
        own = {i: row["io_bandwidth"] for i in mine if (row := hardware.devices[i]).get("io_bandwidth") is not None}
        rows = ((hardware.rate[i], mine if i not in own else [j for j in mine if j not in own]) for i in mine)
        rates = {id(row[j]): row[j] for row, others in rows for j in others}  # of many pairs it is the same
        rate = min([*rates.values(), *map(rate_of, own.values())])
        need(rate, "no path links every pair of devices")
        if len({self.nodes[i] for i in mine}) in (1, len(mine)):
            return rate, rate
        beside = defaultdict[Any, list[int]](list)
        for i in mine:
            beside[self.nodes[i]].append(i)
        return rate, min(hardware.rate[i][j] for near in beside.values() for i in near for j in near)

    def options_of(self, v: int, t: int, k: int) -> list[Option]:
        """Return the options of an op in a form, without those that the rule for recomputing leaves out."""
        rows = self.graph.ops[v].get("menu", {}).get(str(t), [])
        rows = [row for row in rows if not isinstance(row["time_s"], dict) or self.kinds[k] in row["time_s"]]
        of_kind = [row for row in rows if ("recomp" in row["name"].lower()) == (self.recompute == "all")]
        return [self.option(v, row, k) for row in (rows if self.recompute == "auto" else of_kind or rows)]

    def option(self, v: int, row: Any, k: int) -> Option:
        """Return what a variant takes on a kind of devices; no time where it may not run there."""
        known(row, OPTION_KEYS, f"a variant of {self.graph.names[v]!r}")
        need(isinstance(row["name"], str) and "time_s" in row, "a variant has no name or no time")
        syncs = row.get("sync_bytes", {})
        need(syncs.keys() <= self.around[v], f"a variant of {self.graph.names[v]!r} gathers for no neighbour")
        gather = {self.graph.at[w]: self.passes * over(number(syncs, w), self.kind_rates[k][1]) for w in syncs}
        times = row["time_s"] if isinstance(row["time_s"], dict) else {self.kinds[k]: row["time_s"]}
        need(times, f"a variant of {self.graph.names[v]!r} has no time")
        time = {kind: number(times, kind) for kind in times}.get(self.kinds[k], ZERO)
        param, held, fixed, shared = (number(row, key, ZERO) for key in OPTION_SIZES[1:])
        return Option(row["name"], time, param, held, fixed, shared, gather)

    def block(self, count: int, k: int) -> int:
        """Return how many devices of a stage of so many of a kind stand in one node."""
        return max(size for size in self.blocks[k] if count % size == 0)

    def exchange(self, t: int, mix: dict[int, int]) -> Fraction:
        """Return the seconds of each byte of parameters that replicas of degree t, by kind, send each other.

        By way of a server, with gradients and parameters there and back; in a ring once a batch; with ZeRO scattered
        after each micro-batch or gathered before each pass. A ring leaves a node by all links that it has there.
        """
        d, n = sum(mix.values()), self.microbatches
        between = self.rate if len(mix) > 1 else self.kind_rates[min(mix)][0]
        rate = min(self.kind_rates[k][1] for k in mix)
        together = min(self.block(t * count, k) for k, count in mix.items())
        shares = {"server": Fraction(4, n), "ring": Fraction(2, n), "zero2": Fraction(1, d) + Fraction(1, n)}
        if self.volumes == "server" or (len(mix) > 1 and len(set(self.nodes)) == 1):
            rate = between
        elif together < t * d:
            rate = min(rate, between * Fraction(together, t))
        share = shares.get(self.volumes, Fraction(3, d))
        return over((d - 1) * share, rate) if self.training else ZERO

    def mixes(self) -> list[dict[int, int]]:
        """Return replicas by kind that a stage on several kinds may have."""
        counts = [range(count * self.mixed + 1) for count in self.counts]
        if math.prod(map(len, counts)) > MOST_MIXES:
            raise TooLong(f"stages may have more than {MOST_MIXES:,} numbers of replicas of each kind")
        every = [{k: d for k, d in enumerate(mix) if d} for mix in product(*counts)]
        return [mix for mix in every if len(mix) > 1 and sum(mix.values()) <= self.most_replicas]

    def sent(self, v: int, t: int) -> Fraction:
        """Return the most bytes of parameters that an op has in any way at a degree."""
        return max(
            (number(row, "param_bytes", ZERO) for row in self.graph.ops[v]["menu"].get(str(t), [])), default=ZERO
        )

    def moves(self, t: int, size: Fraction) -> Fraction:
        """Return the seconds of a tensor that enters or leaves a stage of one replica, by as many links as devices."""
        at_once = 1 if self.volumes == "server" else t
        return self.passes * (over(size / at_once, self.rate) + Fraction(self.delay))

    def flying(self, taken: int, behind: int, mixed: bool) -> int:
        """Return y of replicas that take so many micro-batches, where those of all stages from theirs on are so many.

        With several kinds one more than the share of what is under way: of m in a row each has its share but for one.
        """
        if self.training == "1f1b":
            return min(taken, -(-behind * taken // self.microbatches) + mixed)
        return taken if self.training else 1


def check_groups(plan: Any, graph: Graph, hardware: Hardware) -> tuple[Fraction, ...]:
    """Return the exact value of a plan of stages of several devices."""
    problem, rows = Groups(plan, graph, hardware), plan["stages"]
    values: list[Fraction] = []
    assignment, members = stage_members(plan, graph)
    counts = [whole(row["replicas"], "replicas", 1) for row in rows]
    degrees = [whole(row["tensor_parallel"], "tensor_parallel", 1) for row in rows]
    shares = check_devices(plan, problem, hardware, counts, degrees)
    for j, (said, ops, t, mine) in enumerate(zip(rows, members, degrees, shares, strict=True)):
        crossing = [(u, v, x) for u, v, x in graph.edges if (assignment[u] == j) != (assignment[v] == j)]
        enter, leave = ({x for u, v, x in crossing if assignment[(u, v)[at]] == j} for at in (1, 0))
        mix = {k: whole(row["replicas"], "replicas", 1) for k, row in mine.items()}
        d, exchange = counts[j], problem.exchange(t, mix) / counts[j]
        for k, row in mine.items():
            need(
                ops and set(row["variants"]) == {graph.names[v] for v in ops}, f"stage {j} has other ops than variants"
            )
            chosen = {v: option_named(row["variants"][graph.names[v]], problem, v, (t, k)) for v in ops}
            gathers = [chosen[u].gather.get(v, ZERO) for u, v, _ in crossing if u in chosen]
            gathers += [chosen[v].gather.get(u, ZERO) for u, v, _ in crossing if v in chosen]
            part = Fraction(taken := whole(row["microbatches"], "microbatches", 1), problem.microbatches)
            y = problem.flying(taken, sum(counts[j:]), len(mine) > 1)
            seconds = {
                "work_s": [one.time for one in chosen.values()],
                "in_s": [problem.moves(t, graph.tensors[x][2]) for x in enter],
                "out_s": [problem.moves(t, graph.tensors[x][2]) for x in leave],
                "sync_s": gathers,
            }
            use = {figure: sum(parts, ZERO) * part for figure, parts in seconds.items()}
            sent = [problem.sent(v, t) if len(mine) > 1 else one.param for v, one in chosen.items()]
            use["gradient_s"] = exchange * sum(sent, ZERO)
            values.append(sum(use.values(), ZERO))
            kept = max(part, Fraction(1, d))
            held = sum((one.held * y + one.fixed + one.shared * kept for one in chosen.values()), ZERO)
            need(held <= problem.room[t, k], f"a device of stage {j} holds more than its memory")
            if len(mine) > 1:
                known(row, SHARE_KEYS, f"a share of stage {j}")
                near(row["time_s"], values[-1], f"time_s of a share of stage {j}")
                near(row["held_bytes"], held, f"held_bytes of a share of stage {j}")
                need(row["in_flight"] == y, f"a share of stage {j} has {y} in flight")
            if row is not next(iter(mine.values())):
                continue
            use["held_bytes"] = held
            use["param_bytes"] = sum((one.param for one in chosen.values()), ZERO)
            use["out_bytes"] = sum((graph.tensors[x][2] for x in leave), ZERO)
            use |= dict.fromkeys(("overflow_s", "off_cache_bytes", "activation_bytes"), ZERO)
            for figure, true in use.items():
                near(said[figure], true, f"{figure} of stage {j}")
            need((said["num_ops"], said["in_flight"]) == (len(ops), y), f"stage {j} has {len(ops)} ops, {y} in flight")
            need(said["variants"] == row["variants"], f"stage {j} has other variants than its first share")
    return (max(values),)


def option_named(name: Any, problem: Groups, v: int, form: tuple[int, int]) -> Option:
    """Return the option of an op in a form that has a name."""
    for one in problem.options[v].get(form, ()):
        if one.name == name:
            return one
    raise Refuted(f"op {problem.graph.names[v]!r} may not run as {str(name)[:40]!r} at degree {form[0]}")


def check_devices(
    plan: Any, problem: Groups, hardware: Hardware, counts: list[int], degrees: list[int]
) -> list[dict[int, Any]]:
    """Return what each kind of devices has of each stage.

    Refute other groups than may be chosen, shares that make up no batch, and devices unknown, taken or of other kinds.
    """
    taken, shares, n = set[int](), list[dict[int, Any]](), problem.microbatches
    for j, (row, t, d) in enumerate(zip(plan["stages"], degrees, counts, strict=True)):
        used: list[Any] = [hardware.at.get(name) for name in row["devices"]]
        need(len(used) == t * d and row["device"] in row["devices"], f"stage {j} has not {t * d} devices")
        need(None not in used and taken.isdisjoint(used) and len(set(used)) == t * d, f"devices of stage {j} are taken")
        taken |= set(used)
        kinds, rows = [problem.kind_at[i] for i in used], row.get("shares", [])
        need(not rows or (problem.mixed and len(rows) > 1), f"stage {j} may not have shares")
        each = rows or [{**row, "kind": problem.kinds[kinds[0]], "microbatches": Fraction(-(-n // d))}]
        need({one["kind"] for one in each} <= set(problem.kinds), f"stage {j} has a share of an unknown kind")
        shares.append({problem.kinds.index(one["kind"]): one for one in each})
        begin, batch = 0, 0
        for k, one in shares[-1].items():
            mine = whole(one["replicas"], "replicas", 1)
            end, took = begin + mine * t, whole(one["microbatches"], "microbatches", 1)
            sound = (t, k) in problem.room and kinds[begin:end] == [k] * (mine * t)
            need(sound and took <= n, f"stage {j} may not have {mine} replicas of {t} devices on {one['kind']!r}")
            size = t if problem.volumes == "server" else problem.block(t * mine, k)
            blocks = ({problem.nodes[i] for i in used[at : at + size]} for at in range(begin, end, size))
            need(all(len(nodes) == 1 for nodes in blocks), f"{size} devices of stage {j} that are in a node are in two")
            begin, batch = end, batch + mine * took
        sound = begin == t * d and batch >= n and (d in problem.replicas or len(each) > 1)
        need(sound and len(shares[-1]) == len(each), f"stage {j} may not have {d} replicas of {t} devices")
    need(sum(counts) <= problem.microbatches, "the stages have more replicas than there are micro-batches")
    need(not problem.uniform or len({*zip(degrees, counts, strict=True)}) == 1, "the stages are not uniform")
    return shares


Behind = tuple[int, ...]
"""Replicas of stages behind a set of ops, and their devices of each kind."""


class GroupStates:
    """What rows of stages below a threshold can be, from the last one on: states of a closed set, devices, replicas.

    The set has the ops of the stages before. These may be what they like, if those behind have fewer devices of each
    kind and replicas: as many devices are left to them, and no more micro-batches are in flight. So of the states of a
    set those are kept of which no other has as few of all; and of the replicas of a stage before a state the fewest
    that it can have. Ops of a set of so many seconds of devices, at their best options, take that many devices at the
    threshold, both weighted by the worth of kinds.
    """

    def __init__(
        self, problem: Groups, threshold: Fraction | None, forms: list[tuple[int, int]], replicas: list[int]
    ) -> None:
        graph = problem.graph
        self.problem, self.forms, self.replicas = problem, forms, replicas
        self.weights = [t * problem.worth[k] for t, k in forms]  # of one replica
        self.worth = sum(map(mul, problem.counts, problem.worth))
        self.lattice = lattice = Lattice(graph, [[v] for v in graph.order])
        at = {v: part for part, v in enumerate(graph.order)}
        options = [[problem.options[v][form] for form in forms] for v in graph.order]
        every = [one for row in options for mine in row for one in mine]
        moves = [[problem.moves(t, size) for _, _, size in lattice.tensors] for t, _ in forms]
        exchange = [[problem.exchange(t, {k: d}) for d in replicas] for t, k in forms]
        self.mixes = sorted(problem.mixes(), key=self.worth_of)
        spread = {(t, at): problem.exchange(t, mix) for t, _ in forms for at, mix in enumerate(self.mixes)}
        if threshold is None:  # one that no stage reaches
            most = max(chain(*exchange, spread.values()))
            sent = sum((problem.sent(v, t) for v in graph.order for t in {t for t, _ in forms}), ZERO)
            seconds = chain((one.time + sum(one.gather.values(), most * one.param) for one in every), [most * sent])
            threshold = sum(seconds, ZERO) + 2 * sum(chain(*moves), ZERO) + 1
        bytes_scale = common_multiple([x for one in every for x in one[2:6]], SCALE_BITS)
        if not bytes_scale:
            raise TooLong("the bytes have too many digits")
        numbers = [threshold, *chain(*moves), *(x / bytes_scale for x in chain(*exchange))]
        scale = common_multiple(numbers + [x for one in every for x in (one.time, *one.gather.values())], SCALE_BITS)
        if not scale:
            raise TooLong("the times have too many digits")
        self.threshold = int(threshold * scale)
        self.spread = {key: x * scale / sum(self.mixes[key[1]].values()) for key, x in spread.items()}
        self.sent = {t: [problem.sent(v, t) for v in graph.order] for t, _ in forms}
        self.room: list[Any] = [x if x == INF else x * bytes_scale for x in (problem.room[form] for form in forms)]
        self.moves = [[int(x * scale) for x in row] for row in moves]
        self.exchange = [[int(x * scale / bytes_scale) for x in row] for row in exchange]
        self.options: list[Any] = [  # of each part, by form: seconds, bytes of four kinds, gathers by part
            [
                [
                    (int(one.time * scale), *(int(x * bytes_scale) for x in one[2:6]),
                     {at[w]: int(x * scale) for w, x in one.gather.items()})
                    for one in mine
                ]
                for mine in row
            ]
            for row in options
        ]  # fmt: skip
        self.around = [sum({1 << w for *_, gather in chain(*row) for w in gather}) for row in self.options]
        self.kinds: list[Any] = []  # options, and the least of each of their figures
        self.known: dict[Any, int] = {}

    def reach(self) -> int | None:
        """Return how many states there are; None if the set of no ops has one, so that a row of stages is whole."""
        problem, lattice, none = self.problem, self.lattice, self.threshold * self.worth
        weights = [
            [
                min((self.weights[c] * row[0] for c, mine in enumerate(part) for row in mine), default=none)
                for part in self.options
            ]
        ]
        for c in range(len(self.forms)):
            weights.append([min((row[0] for row in part[c]), default=none) for part in self.options])
            weights.append([min((row[2] + row[3] for row in part[c]), default=0) for part in self.options])
        self.figures = figures = lattice.sets(*weights)
        order = Ordered(figures, [row[0][0] for row in figures.values()], len(lattice.parts))
        pairs = sum(order.larger_than(row[2], order.all).bit_count() for row in figures.values())
        pairs *= len(self.forms) + len(self.spread)
        if pairs > MOST_STAGES:
            raise TooLong(f"the proof looks at {pairs:,} stages, more than {MOST_STAGES:,}")
        nothing: Behind = (0, *[0] * len(problem.counts))
        states, reached = {lattice.full: [nothing]}, 1 << order.at[lattice.full]
        for ideal in sorted(figures, key=int.bit_count, reverse=True)[1:]:
            need(not problem.expired(), "the search has no time left")
            area, best = figures[ideal][0][0], dict[Behind, int]()
            spare = self.worth - (area // self.threshold + 1 if ideal else 0)
            found = order.larger_than(figures[ideal][2], reached & order.below(area + spare * self.threshold))
            for grown in order.listed(found):
                self.extend(ideal, grown, spare, states[grown], best)
            kept: list[Behind] = []
            for key in sorted(best):
                state = (*key, best[key])
                # Of one kind, the last one kept has the fewest devices.
                if not any(all(map(le, each, state)) for each in (kept[-1:] if len(key) == 1 else kept)):
                    kept.append(state)
            if kept:
                states[ideal] = kept
                reached |= 1 << order.at[ideal]
        return None if 0 in states else sum(map(len, states.values()))

    def taken(self, state: Behind) -> int:
        """Return the worth of the devices of a state."""
        return sum(map(mul, state[1:], self.problem.worth))

    def extend(self, ideal: int, grown: int, spare: int, states: list[Behind], best: dict[Behind, int]) -> None:
        """Put a stage from one closed set to another before the states of the latter.

        `best` has, for replicas and devices of all kinds but the last, the fewest devices of that.
        """
        (area, *before), live_before, _ = self.figures[ideal]
        (area_after, *after), live_after, _ = self.figures[grown]
        room, inside, tensors = spare - min(map(self.taken, states)), grown & ~ideal, self.lattice.tensors
        if area_after - area >= room * self.threshold:
            return
        crossing = [x for x in live_before if tensors[x][1] & inside]
        crossing += [x for x in live_after if inside >> tensors[x][0] & 1]
        for c, weight in enumerate(self.weights):
            least, size = after[2 * c] - before[2 * c], after[2 * c + 1] - before[2 * c + 1]
            moved = sum(self.moves[c][x] for x in crossing)
            if least + moved < self.threshold * (room // weight) and size <= self.room[c]:
                counts = Counter(self.kind(part, c, inside) for part in places(inside))
                kinds = [(self.kinds[at], count) for at, count in counts.items()]
                self.place(kinds, moved, c, spare, states, best)
        for t in sorted(self.sent) if self.mixes else ():
            forms = {k: c for c, (degree, k) in enumerate(self.forms) if degree == t}
            moved = sum(self.moves[min(forms.values())][x] for x in crossing)
            least = min(self.weights[c] * (after[2 * c] - before[2 * c] + moved) for c in forms.values())
            if least < self.threshold * room:
                self.place_mixed(inside, t, forms, moved, spare, states, best)

    def kind(self, part: int, c: int, inside: int) -> int:
        """Return the number of the kind of a part in a stage: its options, but those worse than another in all."""
        key = part, c, self.around[part] & ~inside
        if key not in self.known:
            rows = {
                (time + sum(x for w, x in gather.items() if not inside >> w & 1), *others)
                for time, *others, gather in self.options[part][c]
            }
            kept = tuple(
                row for row in sorted(rows) if not any(each != row and all(map(le, each, row)) for each in rows)
            )
            self.known[key] = self.known.setdefault(kept, len(self.kinds))
            if self.known[key] == len(self.kinds):
                self.kinds.append((kept, [min(column) for column in zip(*kept, strict=True)]))
        return self.known[key]

    def place(self, kinds: Any, moved: int, c: int, spare: int, states: list[Behind], best: dict[Behind, int]) -> None:
        """Give a stage the fewest replicas that it can have before each of some states."""
        (t, k), weight, room = self.forms[c], self.weights[c], self.room[c]
        time, param, held, fixed, shared = (sum(count * least[at] for (_, least), count in kinds) for at in range(5))
        for d, exchange in zip(self.replicas, self.exchange[c], strict=True):
            if not states or weight * d > spare - min(map(self.taken, states)):
                break
            taken = -(-self.problem.microbatches // d)
            part = Fraction(taken, self.problem.microbatches)
            n, of = part.numerator, part.denominator  # where d divides the batch: 1 of d
            a, b = (part * d).numerator, (part * d).denominator  # there: 1 and 1
            seconds = self.threshold * d * b - a * moved
            if a * time + b * exchange * param >= seconds:
                continue
            most_bytes = INF if room == INF else math.floor(of * room)
            endless = not held or room == INF
            fits, most, left = 0, INF if endless else (most_bytes - of * fixed - n * shared) // (of * held), []
            for state in states:  # the more replicas behind, the more micro-batches in flight
                behind, *devices = state
                y = self.problem.flying(taken, behind + d, False)
                if fits < y <= most:
                    rows = [
                        ([(a * time + b * exchange * param, of * (held * y + fixed) + n * shared)
                          for time, param, held, fixed, shared in own], count)
                        for (own, _), count in kinds
                    ]  # fmt: skip
                    if self.chosen(rows, seconds, most_bytes):
                        fits = y
                    else:
                        most = y - 1
                devices[k] += t * d
                if y > fits:
                    left.append(state)
                elif (
                    self.taken(state) + weight * d <= spare
                    and devices[k] <= self.problem.counts[k]
                    and behind + d <= self.problem.most_replicas
                ):
                    key = (behind + d, *devices[:-1])
                    best[key] = min(best.get(key, devices[-1]), devices[-1])
            states = left

    def worth_of(self, mix: dict[int, int]) -> int:
        """Return the worth of replicas by kind, of one device each."""
        return sum(self.problem.worth[k] * d for k, d in mix.items())

    def place_mixed(
        self, inside: int, t: int, forms: dict[int, int], moved: int, spare: int, states: list[Behind],
        best: dict[Behind, int],
    ) -> None:  # fmt: skip
        """Put a stage on several kinds before each of some states, where the largest shares of all make up a batch."""
        sent, n = sum((self.sent[t][part] for part in places(inside)), ZERO), self.problem.microbatches
        kinds = {}
        for k, c in forms.items():
            counts = Counter(self.kind(part, c, inside) for part in places(inside))
            rows = [(self.kinds[at][0], count) for at, count in counts.items()]
            if all(own for own, _ in rows):
                kinds[k] = rows
        known: dict[Any, int] = {}
        enough: list[list[dict[int, int]]] = [[] for _ in states]
        for at, mix in enumerate(self.mixes):
            d, left = sum(mix.values()), self.threshold - self.spread[t, at] * sent
            if not mix.keys() <= kinds.keys() or left <= 0:
                continue
            for state, fewer in zip(states, enough, strict=True):
                behind, *devices = state
                for k, count in mix.items():
                    devices[k] += t * count
                within = all(map(le, devices, self.problem.counts))
                fits = within and self.taken(state) + t * self.worth_of(mix) <= spare
                if not fits or behind + d > self.problem.most_replicas:
                    continue
                if any(all(mix.get(k, 0) >= count for k, count in other.items()) for other in fewer):
                    continue
                for k in mix:
                    key = k, left, d, behind + d
                    if key not in known:
                        known[key] = self.share(kinds[k], left, moved, d, behind + d, self.room[forms[k]])
                shares = [known[k, left, d, behind + d] for k in mix]
                if all(shares) and sum(map(mul, shares, mix.values())) >= n:
                    fewer.append(mix)
                    place = (behind + d, *devices[:-1])
                    best[place] = min(best.get(place, devices[-1]), devices[-1])

    def share(self, rows: Any, left: Fraction, moved: int, d: int, behind: int, room: Any) -> int:
        """Return how many micro-batches a replica of a kind can take, of d in a stage on several; no fewer than it can.

        In less than so many seconds for each of a batch, beside the exchange.
        """
        n, low, high = self.problem.microbatches, 0, self.problem.microbatches
        while low < high:
            taken = (low + high + 1) // 2
            y, part = self.problem.flying(taken, behind, True), max(Fraction(taken, n), Fraction(1, d))
            p, q = part.numerator, part.denominator
            ways = [([(row[0], q * (row[2] * y + row[3]) + p * row[4]) for row in own], count) for own, count in rows]
            most = INF if room == INF else math.floor(q * room)
            if self.chosen(ways, math.ceil(left * n / taken) - moved, most):
                low = taken
            else:
                high = taken - 1
        return low

    def chosen(self, rows: Any, seconds: int, room: Any) -> bool:
        """Return whether options of (seconds, bytes), one for each op, take less than so many seconds and fit in all.

        Rows are the options of an op, and how many ops have these. Exact, but that a stage counts as fitting where more
        than `MOST_SUMS` sums would be kept.
        """
        fast = [(min(own), n) for own, n in rows]
        small = [(min(own, key=lambda one: one[::-1]), n) for own, n in rows]
        cost, size = (sum(one[at] * n for one, n in fast) for at in (0, 1))
        slow, least = (sum(one[at] * n for one, n in small) for at in (0, 1))
        if cost >= seconds or least > room:
            return False
        if size <= room or slow < seconds:
            return True
        steps = []  # from the fastest options to smaller ones, along the convex hull, cheapest byte first
        for own, n in rows:
            one = min(own)
            for at in range(len(own)):
                less = [each for each in own if each[1] < one[1]]
                if not less:
                    break
                further = less[0]
                if len(less) > 1:
                    further = min(less, key=lambda to: (Fraction(to[0] - one[0], one[1] - to[1]), to[1]))
                dearer, saved = further[0] - one[0], one[1] - further[1]
                steps.append((dearer / saved, at, dearer, saved, n))
                one = further
        for _, _, dearer, saved, n in sorted(steps):
            if saved * n >= size - room:
                break
            cost, size = cost + dearer * n, size - saved * n
        # No choice that fits has less than the least sum of seconds and bytes at one price of a byte.
        bound = sum(min(saved * a + dearer * b for a, b in own) * n for own, n in rows)
        if bound > saved * (seconds - 1) + dearer * room:
            return False
        if cost + dearer * -((room - size) // saved) < seconds:
            return True
        return self.listed(rows, seconds, room, dearer, saved)

    def listed(self, rows: Any, seconds: int, room: int, p: int, q: int) -> bool:
        """Return whether a choice is left of all, when those are dropped whose seconds, bytes or sum is too much.

        The sum is of q seconds + p bytes. Ops whose options differ most by it come first: they leave one.
        """
        ops = []
        for own, n in rows:
            priced = sorted((q * cost + p * size, cost, size) for cost, size in own)
            apart = priced[1][0] - priced[0][0] if len(priced) > 1 else INF
            ops += [(apart, [(cost, size, both) for both, cost, size in priced])] * n
        ops.sort(key=lambda op: -op[0])
        left = [seconds - 1, room, q * (seconds - 1) + p * room]
        for _, own in ops:
            left = [most - min(column) for most, column in zip(left, zip(*own, strict=True), strict=True)]
        sums = [(0, 0, 0)]
        for _, own in ops:
            left = [most + min(column) for most, column in zip(left, zip(*own, strict=True), strict=True)]
            grown = sorted(
                (cost + a, size + b, both + c)
                for cost, size, both in sums
                for a, b, c in own
                if cost + a <= left[0] and size + b <= left[1] and both + c <= left[2]
            )
            sums = []
            for each in grown:
                if not sums or each[1] < sums[-1][1]:
                    sums.append(each)
            if not 0 < len(sums) <= MOST_SUMS:
                return bool(sums)
        return True


def group_states(problem: Groups, threshold: Fraction | None) -> int | None:
    """Return how many states rows of stages below a threshold have; None if one is whole. Without: of all that fit."""
    cases = [(problem.forms, problem.replicas)]
    if problem.uniform:
        degrees = sorted({t for t, _ in problem.forms})
        cases = [([form for form in problem.forms if form[0] == t], [d]) for t in degrees for d in problem.replicas]
    counts = [GroupStates(problem, threshold, *case).reach() for case in cases]
    return None if None in counts else sum(count for count in counts if count)


def prove_groups(proof: Any, problem: Groups) -> Fraction:
    """Return the threshold of the proof if no row of stages below it is whole; without one, no end if none fits."""
    threshold = ratio(proof["threshold"]) if "threshold" in proof else None
    need(threshold is None or threshold > 0, "the threshold must be positive")
    states = group_states(problem, threshold)
    need(states is not None, "stages below the threshold make a whole row")
    need(proof["states"] == states, f"the proof counts {proof['states']} states; there are {states}")
    return INF if threshold is None else threshold


def prove_area(proof: Any, problem: Groups) -> Fraction:
    """Return the seconds that all devices together are busy at least, shared by all, both weighted by their worth."""
    worth = problem.worth
    least = (min(t * worth[k] * one.time for (t, k), mine in row.items() for one in mine) for row in problem.options)
    return sum(least, ZERO) / Fraction(sum(map(mul, problem.counts, worth)))


GROUP_PROOFS: dict[str, Callable[[Any, Groups], Fraction]] = {
    "zero": prove_zero,
    "area": prove_area,
    "groups": prove_groups,
}


# -- answers -------------------------------------------------------------------------------------------------------


def costs_of(plan: Any, graph: Graph, hardware: Hardware, level: int, values: tuple[Fraction, ...]) -> Costs | Groups:
    """Return what proofs of a plan's bound on a level know of its problem."""
    if plan.get("groups"):
        return Groups(plan, graph, hardware)
    return (Trained if plan.get("training") else Costs)(plan, graph, hardware, level, values)


def prove(proof: Any, costs: Costs | Groups) -> Fraction:
    """Return the bound that a proof proves."""
    table: dict[str, Callable[[Any, Any], Fraction]] = GROUP_PROOFS if isinstance(costs, Groups) else PROOFS
    need(isinstance(proof, dict) and proof.get("kind") in table, f"unknown proof {str(proof)[:60]}")
    need(
        costs.objective != "throughput"
        or (isinstance(costs, Costs) and costs.runs_once)
        or proof["kind"] in ("zero", "load", "room", "places"),
        f"{proof['kind']} proves no bounds of throughput: shards of an op may run at once",
    )
    need(
        costs.level == 0 or proof["kind"] in ("zero", "states"),
        f"{proof['kind']} proves bounds on the first level alone",
    )
    return table[proof["kind"]](proof, costs)


def exact_values(plan: Any, graph: Graph, hardware: Hardware) -> tuple[Fraction, ...]:
    """Return the exact values of the plan's schedule, after checking that it is feasible and has the plan's values."""
    need_known(plan)
    need(plan["assignment"] is not None, "the plan has no schedule")
    need(plan.get("chunks", 1) == 1 and plan.get("contiguous", True), "chunks and scattered ops are not checked here")
    need(not plan.get("training"), "training pipelines are not checked here")
    need(plan["objective"] != "pipeline" or not hardware.sharing, "devices that share are not checked here")
    need(plan["status"] in ("optimal", "feasible"), f"the plan calls its schedule {plan['status']!r}")
    stages = plan["objective"] in ("pipeline", "memory")
    checked = check_groups if plan.get("groups") else check_stages if stages else check_placement
    values = checked(plan, graph, hardware)
    need(len(values) == len(plan["values"]), "the plan has not as many values as its objective")
    for level, (said, true) in enumerate(zip(plan["values"], values, strict=True)):
        near(said, true, f"the value on level {level}")
    return values


def need_known(plan: Any) -> None:
    """Refute a plan of a kind that is not checked here."""
    known(plan, PLAN_KEYS, "the plan")
    need(plan["objective"] in ("pipeline", "memory", "latency", "throughput"), "unknown objective")
    pipeline, chunks = plan["objective"] == "pipeline", whole(plan.get("chunks", ONE), "chunks", 1)
    need(pipeline or (chunks, plan.get("contiguous", True)) == (1, True), "chunks and scattered ops are of pipelines")
    need(not plan.get("training") or (pipeline and not plan.get("groups")), "training is of pipelines")
    need(not plan.get("stage_orders"), "peaks of activation memory are not checked here")
    need(not plan.get("groups") or plan["objective"] == "pipeline", "stages of several devices are of pipelines")
    counts = plan.get("inputs", 1), plan.get("shard_inputs", 1)
    need(plan["objective"] == "throughput" or counts == (1, 1), "only throughput is of several inputs")
    need(plan.get("resident", "peak") in ("peak", "tensors", "weights"), "unknown rule of what memory holds")


def check_certificate(plan: Any, certificate: Any, levels: int) -> None:
    """Refute a certificate of another plan."""
    known(certificate, CERTIFICATE_KEYS, "the certificate")
    for what in ("graph_fingerprint", "hardware_fingerprint"):
        need(certificate[what] == plan[what], f"the certificate is for another {what.partition('_')[0]}")
    need(len(certificate["levels"]) == levels, "the certificate has not as many levels as the plan")


def check(plan: Any, graph: Graph, hardware: Hardware, certificate: Any, reached: Any = None) -> str:
    """Return the line that says what is verified; `reached` may stand in for `reached_states`."""
    if plan["status"] == "infeasible":
        return check_infeasible(plan, graph, hardware, certificate, reached)
    values = exact_values(plan, graph, hardware)
    bounds, closed = [ZERO] * len(values) if plan["bounds"] is None else plan["bounds"], True
    for said, value in zip(bounds, values, strict=True):
        need(not closed or said <= value * (1 + ROUNDING), f"the bound {float(said)} exceeds the value {float(value)}")
        closed = closed and value - said <= OPTIMAL * value
    need(closed == (plan["status"] == "optimal"), f"the plan calls itself {plan['status']!r}")
    shown = f"{question(plan)}: value {', '.join(f'{float(value):.12g}' for value in values)}"
    if certificate is None:
        return f"VERIFIED (value only) {shown}; no certificate"
    check_certificate(plan, certificate, len(values))
    proven: list[Fraction] = []
    for level, (row, said) in enumerate(zip(certificate["levels"], bounds, strict=True)):
        if row is None:
            return f"VERIFIED (value only) {shown}; the bound rests on {', '.join(certificate['trusted'])}"
        costs = costs_of(plan, graph, hardware, level, values)
        if reached and isinstance(costs, Costs):
            costs.reached = reached
        try:
            proven.append(prove(row, costs))
        except TooLong as problem:
            return f"VERIFIED (value only) {shown}; the bound is not checked: {problem}"
        need(proven[-1] <= values[level], f"the proof on level {level} contradicts the value")
        need(proven[-1] >= said * (1 - ROUNDING), f"level {level} is proven to {float(proven[-1])}, not {float(said)}")
        if values[level] - proven[-1] > OPTIMAL * values[level]:  # the levels behind speak of schedules optimal here
            need(plan["status"] != "optimal", "the plan calls itself optimal; the proof leaves a gap")
            break
    told = ", ".join(f"{float(bound):.12g}" for bound in proven)
    return f"VERIFIED (exact) {shown}; bound {told}{'; optimal' * (plan['status'] == 'optimal')}"


def question(plan: Any) -> str:
    """Return what of the problem the plan alone says."""
    if plan.get("groups"):
        asked = (f"{key} {plain(value)}" for key, value in sorted(plan["groups"].items()) if value)
        return f"pipeline of stages of several devices, {', '.join(asked)}"
    objective, inputs = plan["objective"], whole(plan.get("inputs", ONE), "inputs", 1)
    if objective in ("pipeline", "memory"):
        rules = plan.get("training") or {}
        told = [f"{key} {plain(rules[key])}" for key in sorted(TRAINING_KEYS & rules.keys()) if rules[key]]
        told += [f"chunks {plain(plan['chunks'])}"] if plan.get("chunks", 1) > 1 else []
        return ", ".join([objective, *told, *([] if plan.get("contiguous", True) else ["ops anywhere"])])
    rules = f"{plan.get('transfer_rule', 'parallel')} transfers, {plan.get('resident', 'tensors')} in memory"
    return f"{objective} of {inputs} input{'s' * (inputs > 1)}, {rules}"


def plain(value: Any) -> str:
    """Return a value of a plan's rules as it is read."""
    if isinstance(value, dict):
        return " ".join(f"{key}: {plain(each)}" for key, each in sorted(value.items()))
    return f"{float(value):.12g}" if isinstance(value, Fraction) else str(value)


# -- serving -------------------------------------------------------------------------------------------------------


class Fleet:
    """Devices that serve layers in a row, at rates by span, over links: all of a file, or some."""

    def __init__(self, data: Any, partial: bool, devices: Any = None) -> None:
        known(data, FLEET_KEYS, "the fleet")
        self.data, self.partial, self.layers = data, partial, whole(data["layers"], "layers", 1)
        at = named(data["devices"], FLEET_DEVICE_KEYS)
        need(not {"source", "sink"} & set(at), "a device is called source or sink")
        self.names = list(at) if devices is None else list(devices)
        need(
            len(set(self.names)) == len(self.names) and set(self.names) <= set(at),
            "devices are unknown, or named twice",
        )
        self.links: dict[tuple[str, str], Fraction] = defaultdict(lambda: ZERO)
        inside = {*self.names, "source", "sink"}
        for row in data["links"]:
            known(row, FLEET_LINK_KEYS, "a link")
            need({row["from"], row["to"]} <= {*at, "source", "sink"}, "a link joins what is no device")
            if {row["from"], row["to"]} <= inside:
                self.links[row["from"], row["to"]] += number(row, "tokens_per_s")
        rows = [data["devices"][at[name]] for name in self.names]
        need(all(row.keys() <= {"name", "type", "like"} for row in rows if "like" in row), "a device has rates twice")
        self.rows = {row["name"]: data["devices"][at[row.get("like", row["name"])]] for row in rows}
        told = {row["name"]: row for row in self.rows.values()}
        need(all("like" not in row for row in told.values()), "a device is like one without rates")
        tables = {name: self.table(row) for name, row in told.items()}
        self.tables = {name: tables[row["name"]] for name, row in self.rows.items()}
        contents = [
            (name, repr([told[name][key] for key in sorted({*told[name]} - {"name", "type"})])) for name in told
        ]
        first = {said: name for name, said in reversed(contents)}
        self.alike = {name: first[said] for name, said in contents}
        columns = zip(*(times for row in told.values() for times in row.get("seconds_by_batch", [])), strict=True)
        self.fastest = [int(one * PASS_SCALE) for one in accumulate(map(min, columns), initial=ZERO)]

    def table(self, row: Any) -> tuple[dict[int, Fraction], ...]:
        """Return what a device passes by layers held, for every first layer or for all of them alike."""
        rows = row.get("tokens_per_s_by_first_layer", [row.get("tokens_per_s_by_layers_held")])
        need(len(rows) in (1, self.layers), f"{row['name']!r} has rates for {len(rows)} first layers")
        tables = tuple({int(held): number(one, held) for held in one} for one in rows)
        need(all(min(one, default=1) >= 1 for one in tables), f"{row['name']!r} has rates without layers")
        return tables

    def spans(self, name: str) -> Iterator[tuple[int, int, Fraction]]:
        """Yield (first layer, end, tokens a second) of what a device may hold, cut to what its links let through."""
        into = {a: rate for (a, b), rate in self.links.items() if b == name}
        out = {b: rate for (a, b), rate in self.links.items() if a == name}
        first, last = into.pop("source", ZERO), out.pop("sink", ZERO)
        enters, leaves = sum(into.values(), ZERO), sum(out.values(), ZERO)
        for start in range(self.layers):
            for held, rate in self.tables[name][start if len(self.tables[name]) > 1 else 0].items():
                if start + held <= self.layers and rate > 0:
                    room = enters if start else first + (enters if self.partial else ZERO)
                    yield start, start + held, min(rate, room, last if start + held == self.layers else leaves)

    def options(self, name: str, rate: Fraction) -> Iterator[tuple[int, int, int, list[tuple[int, int, int]]]]:
        """Yield (first layer, end, room, ways) of what a device may hold, in parts of a rate and of a second.

        A way is a batch: what is passed, seconds of the device, and least seconds of a pass.
        """
        row, batches = self.rows[name], self.data.get("batches", [])
        limit, runs = self.data.get("longest_s", INF) * (1 + ROUNDING), []
        for batch, seconds in zip(batches, row.get("seconds_by_batch", []), strict=True):
            need(batch > 0 and len(seconds) == self.layers and min(seconds) >= 0, f"{name!r} has no seconds")
            before = [int(one * PASS_SCALE) for one in accumulate(seconds, initial=ZERO)]
            runs.append((batch, -(-batch * PASS_SCALE**2 // rate), before))
        for start, end, passed in self.spans(name):
            most, ways = min(PASS_SCALE, -(-passed * PASS_SCALE // rate)), list[tuple[int, int, int]]()
            room = row["sequences_by_first_layer"][start][end - start - 1] if batches else MOST_ROOM
            rest = self.fastest[-1] - self.fastest[end] + self.fastest[start] - 2 if batches else 0
            for batch, made, before in runs:
                spent = before[end] - before[start] - 1
                if batch <= room and spent + rest <= limit * PASS_SCALE:
                    own = min(most, -(-made // spent)) if spent > 0 else most
                    ways.append((own, max(spent, 0), max(spent + rest, 0)))
            yield start, end, -(-room * PASS_SCALE**2 // rate), ways if batches else [(most, 0, 0)]

    def kinds(self) -> list[list[str]]:
        """Return devices of equal rates and links together."""
        found: dict[Any, list[str]] = defaultdict(list)
        for name in self.names:
            into = sorted(rate for (a, b), rate in self.links.items() if b == name and a != "source")
            out = sorted(rate for (a, b), rate in self.links.items() if a == name and b != "sink")
            ends = self.links.get(("source", name)), self.links.get((name, "sink"))
            found[self.alike[self.rows[name]["name"]], tuple(into), tuple(out), ends].append(name)
        return list(found.values())


def follows(before: Any, after: Any, partial: bool) -> bool:
    """Return whether a request may go from a device that holds one span to one that holds another."""
    return bool(before[1] == after[0] or (partial and after[0] < before[1] < after[1]))


def check_flow(plan: Any, fleet: Fleet) -> Fraction:
    """Return what a layout serves, after checking that its flow keeps to spans, rates and links, and is conserved."""
    spans = {name: [int(whole(end, "the end of a span")) for end in span] for name, span in plan["spans"].items()}
    need(spans.keys() <= set(fleet.names), "spans are of unknown devices")
    into: dict[str, Fraction] = defaultdict(lambda: ZERO)
    out: dict[str, Fraction] = defaultdict(lambda: ZERO)
    ends = spans | {"source": [0, 0], "sink": [fleet.layers, fleet.layers + 1]}
    pairs = set()
    for row in plan["flow"]:
        known(row, FLEET_LINK_KEYS, "a flow")
        a, b, rate = row["from"], row["to"], number(row, "tokens_per_s")
        need(a in ends and b in ends and (a, b) not in pairs and rate >= 0, f"the flow {a} -> {b} is none")
        need(follows(ends[a], ends[b], fleet.partial), f"{b} does not go on where {a} ends")
        need(rate <= fleet.links[a, b] * (1 + ROUNDING), f"the flow {a} -> {b} is more than the link lets through")
        pairs.add((a, b))
        out[a] += rate
        into[b] += rate
    for name, (start, end) in spans.items():
        need(0 <= start < end <= fleet.layers, f"{name} holds no span of layers")
        table = fleet.tables[name][start if len(fleet.tables[name]) > 1 else 0]
        need(into[name] <= table.get(end - start, ZERO) * (1 + ROUNDING), f"{name} passes more than it can")
        near(out[name], into[name], f"what {name} passes on", into["sink"])
    near(out["source"], into["sink"], "what the source sends")
    return into["sink"]


def check_caches(plan: Any, fleet: Fleet) -> None:
    """Check that paths of two pools make up the flow, and that links carry vectors and caches of what goes along them.

    Layers of the second pool are counted behind those of the first. Devices next to each other in one pool pass on
    vectors, of a prompt or of tokens; one that reads layers sends their cache to one that makes answers with them.
    """
    caches, layers = fleet.data.get("caches"), whole(plan["prompt_layers"], "prompt_layers", 0)
    need((0 if caches is None else caches["layers"]) == layers, "the plan's pools are not those of the fleet")
    if caches is None:
        return
    known(caches, CACHE_KEYS, "caches")
    kept = caches["cache_bytes"]
    need(2 * layers == fleet.layers and len(kept) == layers and not fleet.partial, "pools do not have all layers each")
    moved = number(caches, "prompt_bytes"), number(caches, "token_bytes")
    need(all(isinstance(one, Fraction) and one >= 0 for one in (*kept, *moved)), "a cache or vector has no size")
    room: dict[Any, Fraction] = defaultdict(lambda: ZERO)
    used: dict[Any, Fraction] = defaultdict(lambda: ZERO)
    flow: dict[Any, Fraction] = defaultdict(lambda: ZERO)
    for row in caches["links"]:
        room[row["from"], row["to"]] += number(row, "bytes_per_s")
    for path in plan["paths"]:
        names, rate = path["devices"], number(path, "tokens_per_s")
        need(rate >= 0, "a path goes backwards")
        for pair in pairwise(["source", *names, "sink"]):
            flow[pair] += rate
        for a, b in product(names, repeat=2):
            (start, end), (first, last) = plan["spans"][a], plan["spans"][b]
            if end == first != layers:
                used[a, b] += rate * moved[end > layers]
            elif end <= layers <= first:
                common = range(int(max(start, first - layers)), int(min(end, last - layers)))
                used[a, b] += rate * sum((kept[layer] for layer in common), ZERO)
    for row in plan["flow"]:
        near(row["tokens_per_s"], flow.pop((row["from"], row["to"]), ZERO), "what paths send over a link")
    need(not any(flow.values()), "paths send more than the flow")
    for (a, b), size in used.items():
        need(size <= room[a, b] * (1 + ROUNDING), f"vectors and caches from {a} to {b} are more than the link carries")


def sizes_of(proof: Any, fleet: Fleet) -> list[Fraction]:
    """Return the sizes of layers that a proof goes by."""
    sizes = proof.get("sizes", [ONE] * fleet.layers)
    need(len(sizes) == fleet.layers and all(isinstance(one, Fraction) and one > 0 for one in sizes), "sizes are none")
    return list(sizes)


def refutes_by_coverage(proof: Any, fleet: Fleet, rate: Fraction) -> bool:
    """Return whether the devices cannot hold every layer on some that pass the rate together.

    Of classes of passes: paths of class k take from T(k) to T(k + 1), and serve F(k). Their devices have every layer,
    their seconds add up to T(k + 1) at most, and none passes more of the class than F(k).
    """
    passes = proof.get("passes") or {"ends_s": [], "sizes": [sizes_of(proof, fleet)], "waits": [ZERO], "caps": {}}
    known(passes, PASS_KEYS, "classes of passes")
    ends, sizes, waits, caps = (passes[key] for key in ("ends_s", "sizes", "waits", "caps"))
    values = [*ends, *chain.from_iterable(sizes), *waits, *chain.from_iterable(caps.values())]
    need(all(isinstance(one, Fraction) and one >= 0 for one in values), "multipliers are none")
    starts, ends = [ZERO, *ends], [*ends, fleet.data.get("longest_s", INF)]
    need(all(map(lt, starts, ends)) and len(starts) == len(sizes) == len(waits), "a class of passes has no seconds")
    need(all(len(row) == fleet.layers for row in sizes), "layers have no sizes")
    need(ends[-1] < INF or not waits[-1], "passes of any length wait")
    none, worth = [ZERO] * len(starts), []
    need(caps.keys() <= set(fleet.names) and all(len(row) == len(none) for row in caps.values()), "caps are of nothing")
    for row, wait, end, paid in zip(sizes, waits, ends, zip(none, *caps.values(), strict=True), strict=True):
        worth.append(sum(row, ZERO) - (wait * end if wait else ZERO) - sum(paid, ZERO))
    total = ZERO
    for kind in fleet.kinds():
        for own, count in Counter(tuple(caps.get(name, none)) for name in kind).items():
            total += count * most_worth(list(zip(sizes, waits, own, starts, ends, strict=True)), fleet, kind[0], rate)
    return bool(total < min(worth))


def most_worth(classes: Any, fleet: Fleet, name: str, rate: Fraction) -> Fraction:
    """Return at least what a device is worth with any span and batch, for each token of the rate.

    It passes tokens of each class, up to its rate in all, and has sequences under way, up to its room. What a token is
    worth on average is the least concave function of the seconds of its pass that is nowhere below that of a class.
    Numbers are rounded to whole parts, to the side that proves less.
    """
    befores = [[int(one * PASS_SCALE) for one in accumulate(row[0], initial=ZERO)] for row in classes]
    caps = [int(cap * PASS_SCALE) - 3 for _, _, cap, _, _ in classes]
    rows = [
        (int(wait * PASS_SCALE), int(start * PASS_SCALE), min(end, PASS_SCALE) * PASS_SCALE + 1)
        for _, wait, _, start, end in classes
    ]
    best = 0
    for first, last, room, ways in fleet.options(name, rate):
        held = [before[last] - before[first] - cap for before, cap in zip(befores, caps, strict=True)]
        highest = max(held)
        for most, seconds, least in ways:
            if most * highest <= best:
                continue
            points = [(0, 0)]
            for value, (wait, start, end) in zip(held, rows, strict=True):
                value, at = value - wait * seconds // PASS_SCALE, max(start, least)
                if least <= end and value > points[-1][1]:
                    while len(points) > 1 and (points[-1][1] - points[-2][1]) * (at - points[-2][0]) <= (
                        (value - points[-2][1]) * (points[-1][0] - points[-2][0])
                    ):
                        points.pop()
                    points.append((at, value))
            for (at, value), (after, more) in pairwise([*points, (INF, points[-1][1])]):
                if room < most * after:
                    gain = (room - most * at) * (more - value) if more > value else 0
                    best = max(best, most * value + (-(-gain // (after - at)) if gain else 0))
                    break
    return Fraction(best, PASS_SCALE**2)


def refutes_by_prices(proof: Any, fleet: Fleet, rate: Fraction) -> bool:
    """Return whether holding every layer on whole devices that pass the rate costs more than all devices do."""
    sizes, grid = sizes_of(proof, fleet), int(whole(proof["steps"], "the steps of a grid", 1))
    need(grid <= MOST_STEPS, f"a grid has more than {MOST_STEPS} steps")
    prices = {name: number(proof["prices"], name, ZERO) for name in fleet.names}
    need(all(price >= 0 for price in prices.values()), "a price is negative")
    before = list(accumulate(sizes, initial=ZERO))
    kinds: dict[Any, list[str]] = {
        (at, prices[name]): [each for each in kind if prices[each] == prices[name]]
        for at, kind in enumerate(fleet.kinds()) for name in kind
    }  # fmt: skip
    scale = PRICE_SCALE / max(sum(prices.values()), Fraction(1, 10**300))
    spans = [(kind, price * scale, list(fleet.spans(kind[0]))) for (_, price), kind in kinds.items()]
    total = ZERO
    for size in set(sizes):
        least: list[Any] = [0] + [INF] * grid
        for kind, price, rows in spans:
            ways: dict[int, int] = {}
            for start, end, passed in rows:
                if size in sizes[start:end]:
                    steps = min(grid, -int(-passed * grid // rate))
                    cost = int(price * size / (before[end] - before[start]))
                    ways[steps] = min(cost, ways.get(steps, cost))
            least = with_kind(least, len(kind), ways, grid)
        total += sizes.count(size) * (PRICE_SCALE * 2 if least[grid] == INF else least[grid])
    return total > PRICE_SCALE


def with_kind(least: list[Any], count: int, ways: dict[int, int], grid: int) -> list[Any]:
    """Return least costs of steps where up to so many devices of one kind come in, each in one of some ways."""
    costs = {steps: cost for steps, cost in ways.items() if all(ways[s] > cost for s in ways if s > steps)}
    row, best = least, least
    for _ in range(count):
        after = [INF] * (grid + 1)
        for steps, cost in costs.items():
            after = list(map(min, after, [one + cost for one in [row[0]] * steps + row[: grid + 1 - steps]]))
        if all(map(le, best, after)):
            break
        best, row = list(map(min, best, after)), after
    return best


def refutes(proof: Any, fleet: Fleet) -> Fraction:
    """Return the rate that a proof shows no layout to serve; so much and more."""
    rate: Fraction = max(number(proof, "bound") * (1 + ROUNDING), LEAST_RATE)
    if proof["kind"] == "networks":
        parts = proof["parts"]
        names = [name for part in parts for name in part["devices"]]
        need(sorted(names) == sorted(fleet.names), "the networks are not all devices, each once")
        network = {name: at for at, part in enumerate(parts) for name in part["devices"]} | {"source": -1, "sink": -1}
        pairs = [pair for pair in fleet.links if -1 not in (network[pair[0]], network[pair[1]])]
        crossing = sum((fleet.links[a, b] for a, b in pairs if network[a] != network[b]), ZERO)
        need(all(part["kind"] != "networks" for part in parts), "networks of networks are not read")
        inside = sum((refutes(part, Fleet(fleet.data, fleet.partial, part["devices"])) for part in parts), ZERO)
        need(inside + crossing <= rate * (1 + ROUNDING), "the networks serve more together")
        return rate
    need(proof["kind"] in ("coverage", "prices"), f"unknown proof {str(proof['kind'])[:60]}")
    refuted = refutes_by_coverage if proof["kind"] == "coverage" else refutes_by_prices
    need(refuted(proof, fleet, rate), f"{proof['kind']} does not refute {float(rate)} tokens a second")
    return rate


def check_serving(plan: Any, data: Any) -> str:
    """Return the line that says what is verified of a layout that serves."""
    known(plan, SERVING_KEYS, "the plan")
    need(plan["status"] in ("optimal", "feasible"), f"the plan calls its layout {plan['status']!r}")
    need(plan["partial"] in (True, False), "partial is neither true nor false")
    fleet = Fleet(data, plan["partial"])
    value, said = check_flow(plan, fleet), plan["bound"]
    check_caches(plan, fleet)
    near(plan["tokens_per_s"], value, "the flow")
    near(said, number(plan["proof"], "bound"), "the bound")
    need(value <= refutes(plan["proof"], fleet) * (1 + ROUNDING), "the proof contradicts the flow")
    closed = said - value <= OPTIMAL * said
    need(closed == (plan["status"] == "optimal"), f"the plan calls itself {plan['status']!r}")
    entry = "at any layer" if fleet.partial else "at first layers"
    shown = f"serving, devices entered {entry}: {float(value):.12g} tokens a second"
    return f"VERIFIED (exact) {shown}; bound {float(said):.12g}{'; optimal' * closed}"


def answer(read: Callable[[], tuple[Any, Any, Any, Any]], reached: Any = None) -> str:
    """Return the one line that is said of a plan, a graph, hardware and a certificate or None, as they are read."""
    try:
        plan, graph, hardware, certificate = read()
        if hardware is None:
            line = check_serving(plan, graph)
        else:
            line = check(plan, Graph(graph), Hardware(hardware), certificate, reached)
    except Refuted as problem:
        line = f"REFUTED: {problem}"
    except MALFORMED as problem:
        line = f"REFUTED: malformed file ({type(problem).__name__}: {problem})"
    return "".join(each if each.isprintable() else "?" for each in line)


def main(arguments: list[str]) -> int:
    """Check the files named on the command line; return the exit code."""
    if len(arguments) not in (2, 3, 4):
        print(__doc__)
        return 2
    forms: tuple[str, ...] = ("rlinit-plan", "rlinit-graph", "rlinit-hardware", "rlinit-certificate")
    if len(arguments) == 2:
        forms = ("rlinit-serving", "rlinit-fleet")
    line = answer(lambda: tuple([*map(read, arguments, forms), None, None][:4]))
    print(line)
    return int(line.startswith("REFUTED"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
