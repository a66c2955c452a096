"""What was measured, as pages of Markdown: ``python -m benchmarks.pages FOLDER`` writes them from ``results``.

`write_pages` gives a page for each file of results, with what it was made with and all rows, a list of these pages, and
`summary.md`, a table whose figures are computed from the same files. Only what a paper says is typed. A file that does
not say which commit made it is not shown. ``python -m benchmarks.pages README.md`` writes the figures of README.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import commits_behind, is_shown
from benchmarks.record import RESULTS, geometric_mean

__all__ = ["readme_with_figures", "write_pages"]

Rows = list[dict[str, Any]]

_TITLES = {
    "ledger_stages_1s": "What each mechanism earns: stages, 1 s",
    "ledger_stages_10s": "What each mechanism earns: stages, 10 s",
    "ledger_stages_4s": "What each mechanism earns: chunks and any ops, 4 s",
    "ledger_stages_20s": "What ideals of many states earn: stages, 20 s",
    "ledger_stages_6s": "What the bound by convex covers earns: stages, 6 s",
    "ledger_groups_1s": "What each mechanism earns: stages of several devices, devices that share, 1 s",
    "ledger_placements_1s": "What each mechanism earns: placements, 1 s",
    "ledger_placements_10s": "What each mechanism earns: placements, 10 s",
    "ledger_language-models_5s": "What each mechanism earns: language models, 5 s",
    "ledger_training_1s": "What each mechanism earns: training, 1 s",
    "ledger_training_10s": "What each mechanism earns: training, 10 s",
    "before_after_stages_1s": "Two commits: stages, 1 s",
    "before_after_stages_10s": "Two commits: stages, 10 s",
    "before_after_placements_1s": "Two commits: placements, 1 s",
    "before_after_placements_10s": "Two commits: placements, 10 s",
    "before_after_training_1s": "Two commits: training, 1 s",
    "before_after_training_10s": "Two commits: training, 10 s",
    "measured_tables": "Costs from measured tables of GPUs",
    "inc_ilp": "Inc-ILP: ten ImageNet graphs",
    "agent_stages_imagenet": "Agent for stages: ImageNet graphs",
    "agent_stages_gamma": "Agent for stages: window by start",
    "agent_stages_proof": "Agent for stages: seconds to the proof",
    "agent_stages_sizes": "Agent for stages: larger graphs",
    "agent_stages_synthetic": "Agent for stages: synthetic graphs",
    "agent_stages_table1": "Inc-ILP Table I, every graph",
    "agent_placement": "Agent for latency",
    "agent_inference": "Agent for latency: milliseconds of each step",
    "diviml_table_1": "DIVIML Table I: latency",
    "diviml_table_3": "DIVIML Table III: the split",
    "diviml_table_4": "DIVIML Table IV: throughput, 16 inputs",
    "diviml_table_4_128": "DIVIML Table IV: throughput, 128 inputs",
    "diviml_small": "DIVIML: modules of ten nodes",
    "diviml_memory": "DIVIML thesis: memory and batch size",
    "diviml_zoo": "DIVIML: networks of the zoo",
    "gpt3": "DIVIML Table V: GPT-3",
    "moirai_instances": "Moirai: published instances",
    "moirai_models": "Moirai Table V: language models",
    "mtpp_zoo": "MTPP: networks of the zoo",
    "mtpp_regal": "MTPP: graphs of the REGAL recipe",
    "mtpp_regal_bounds": "MTPP Tables 1 to 3: bounds and orders",
    "activations": "MTPP: activations counted",
    "piper": "Stages of several devices: BERT of 32 layers",
    "clusters": "Stages of several devices: language models on clusters",
    "alwabp_10_s": "Assembly lines with unlike workers, 10 s",
    "alwabp_60_s": "Assembly lines with unlike workers, 60 s",
    "assembly_lines_100": "Assembly lines of 100 tasks",
    "assembly_lines_1000": "Assembly lines of 1,000 tasks",
    "dnn_partitioning": "Tarnawski et al.: contiguous splits",
    "dnn_partitioning_loose": "Tarnawski et al.: ops on any device",
    "task_graphs_communication": "Task graphs with delays",
    "task_graphs_stg": "Standard Task Graphs",
    "task_graphs_flexible_job_shop": "Flexible job shops",
    "pipelines_large": "Pipelines of 50,000 ops",
    "pipelines_searched": "Pipelines of searched networks",
    "pipelines_shared": "Pipelines of several models that share devices",
    "pipelines_traced": "Pipelines of traced models",
    "pipelines_unlike": "Pipelines on unlike GPUs",
    "placements_imported": "Placements of imported networks",
    "placements_large": "Placements of 500 to 2,000 ops",
    "placements_large_exclusive": "Placements of 500 to 2,000 ops, one transfer at a time on a link",
    "placements_randomly_wired": "Placements of randomly wired networks",
    "placements_tight": "Placements with little memory for live tensors",
    "placements_unrelated": "Placements on 64 unrelated machines",
    "training_pipelines_plans": "Training pipelines: schedules",
    "training_pipelines_published": "Training pipelines: published workloads",
    "training_pipelines_trained": "Training pipelines: planned and trained",
    "language_models": "Language models over clusters",
    "serving_fleets": "Serving on published and made-up fleets",
    "serving_models": "Serving language models: tokens and requests a second, rate against latency",
    "language_models_any_device": "Language models, each unit on any device",
    "replanning_latency": "Re-planning: placements after a change",
    "replanning_stages": "Re-planning: pipelines after a change",
    "certificates_dnn_partitioning": "Certificates: dnn-partitioning",
    "certificates_assembly_lines": "Certificates: assembly lines",
    "certificates_flexible_job_shop": "Certificates: flexible job shops",
    "flexible_job_shop_certified": "Flexible job shops: proofs in three formats",
    "certificates_communication": "Certificates: task graphs with delays",
    "certificates_imagenet": "Certificates: ImageNet graphs",
    "certificates_zoo": "Certificates: networks of the zoo",
    "first_answers": "First answers",
    "executors_gain": "Executors: two workers",
    "executors_models": "Executors: equal outputs",
    "executors_overhead": "Executors: overhead",
    "executors_pipeline": "Executors: pipelines of processes",
    "measured_costs": "Measured costs",
    "learning_multipliers": "Learned multipliers",
    "learning_strategy": "The dual ascent in auto",
    "learning_opening_1s": "The first schedule before the loads",
    "learning_first_beam_1s": "A first beam before the bounds, 1 s",
    "learning_first_beam_10s": "A first beam before the bounds, 10 s",
    "learning_stage_agent_1s": "The stage agent in auto",
    "learning_stage_agent_trained_again_1s": "The stage agent trained again, in auto",
    "learning_first_search_1s": "A first search before the loads",
    "learning_latency_agent_0.1s": "The latency agent in auto, 0.1 s",
    "learning_latency_agent_0.3s": "The latency agent in auto, 0.3 s",
    "learning_latency_agent_1s": "The latency agent in auto, 1 s",
    "learning_latency_agent_3s": "The latency agent in auto, 3 s",
    "learning_costs": "Learned costs",
    "learning_costs_devices": "Learned costs of a device never seen",
    "learning_branching": "Orders of branching",
    "learning_shares": "Other shares and orders of phases",
    "importers": "Importers",
    "slicing": "Slicing",
    "startup": "Start-up",
    "time_limits": "Time limits",
    "drawn_limits": "Time limits of drawn problems",
    "training_throughput_stages_cpu": "Training throughput",
}
"""Titles of the pages, in their order; results that are not named here come last, under the name of their file."""

_IN_PER_CENT = "agent_stages_"
"""Results under such names have gaps in per cent; elsewhere a gap is a share."""

_UNITS = ("s", "ms", "bytes", "gb", "mb", "flops")


def write_pages(folder: Path) -> None:
    """Write all pages; files of an earlier call are replaced.

    Parameters
    ----------
    folder
        Where to; it is made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):  # of results that are no more
        path.unlink()
    found = _found()
    names = sorted(found, key=lambda name: (list(_TITLES).index(name) if name in _TITLES else len(_TITLES), name))
    for name in names:
        text = _page(name, found[name]) if is_shown(found[name]) else _page_of_unknown_origin(name)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    shown = {name: data for name, data in found.items() if is_shown(data)}
    (folder / "summary.md").write_text(_summary(shown), encoding="utf-8")
    listed = "\n".join(names)
    (folder / "pages.md").write_text(
        f"# Results by instance\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n", encoding="utf-8"
    )


def _found() -> dict[str, dict[str, Any]]:
    """Return what all files of results hold, by their names."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}


def _page_of_unknown_origin(name: str) -> str:
    return f"# {_TITLES.get(name, name)}\n\nNot shown: the file does not say which code made these rows.\n"


def _page(name: str, data: Mapping[str, Any]) -> str:
    """Return the page of one file of results."""
    machine = data["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in machine["versions"].items() if value)
    says = [
        f"# {_TITLES.get(name, name)}",
        f"`{data['command']}`",
        f"Commit {data['commit'][:7]}, {_age(data)}; {data['seconds']:,.0f} s in all, load {data['load'][0]:g} before "
        f"and {data['load'][1]:g} after, seeds {', '.join(map(str, data['seeds']))}.",
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}; {versions}.",
        *(f"![{_TITLES.get(name, name)}](../../../benchmarks/results/{picture})" for picture in _pictures(name)),
    ]
    settings = {
        key: value
        for key, value in data["settings"].items()
        if not isinstance(value, dict)  # a whole device can be read in the file
    }
    tables = [(key, settings.pop(key)) for key in list(settings) if _is_table(settings[key])]
    if settings:
        says.append("Settings: " + "; ".join(f"{_heading(key)} {_cell('', value)}" for key, value in settings.items()))
    for part, part_rows in [*tables, *_parts(data["rows"])]:
        if part or tables:
            says.append(f"## {_heading(part or 'every problem').capitalize()}")
        flat = [_flat(row) for row in part_rows]
        if name.startswith(_IN_PER_CENT):
            flat = [{key: cell / 100 if key.endswith("gap") else cell for key, cell in row.items()} for row in flat]
        says.append(_table(flat))
    return "\n\n".join(says) + "\n"


def _age(data: Mapping[str, Any]) -> str:
    """Return in words how old the code is that made a file of results."""
    behind = commits_behind(data)
    if behind == 0:
        return "the code of today"
    if behind is None:
        return "other code than today's"
    return f"{behind} {'commit' if behind == 1 else 'commits'} of its code behind"


def _pictures(name: str) -> list[str]:
    """Return the names of the pictures that were drawn with a file of results."""
    return sorted(path.name for path in (*RESULTS.glob(f"{name}.png"), *RESULTS.glob(f"{name}_figure_*.png")))


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _parts(rows: Any) -> Iterator[tuple[str, Rows]]:
    """Yield the tables of a file of results with their names: one without, or one for each entry."""
    for part, inner in rows.items() if isinstance(rows, dict) else [("", rows)]:
        if isinstance(inner, dict):
            inner = [
                {"what": key, **(cell if isinstance(cell, dict) else {"seconds": cell})} for key, cell in inner.items()
            ]
        yield part, inner


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the entries of inner mappings as columns of its own; lists of mappings are left out."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key}: {inner}": cell for inner, cell in _flat(value).items()})
        elif key == "verdict":  # what follows are the value and the bound
            flat[key] = value.split(")")[0] + ")"
        elif not _is_table(value):
            flat[key] = value
    return flat


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns = [key for key in columns if any(row.get(key) not in (None, "", [], {}) for row in rows)]
    numeric = {key: all(isinstance(row.get(key), int | float | None) for row in rows) for key in columns}
    lines = [
        [_heading(key) for key in columns],
        ["---:" if numeric[key] else "---" for key in columns],
        *([_cell(key, row.get(key)) for key in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading(key: str) -> str:
    """Return the name of a column: words, and the unit in brackets."""
    stem, _, unit = key.rpartition("_")
    if stem and unit in _UNITS:
        return f"{stem.replace('_', ' ')} ({unit})"
    return key.replace("_", " ")


def _cell(key: str, value: object) -> str:
    """Return a value as text: four digits, shares of gaps in per cent."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "∞"
        if key.endswith("gap"):
            return f"{value:.2%}"
        return f"{value:,.0f}" if abs(value) >= 1e4 or value == round(value) else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return " / ".join(_cell(key, one) for one in value)
    return str(value).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


# -- the summary ---------------------------------------------------------------------------------------------------


def _summary(shown: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of what matters most: what, here, beside it, the age of the code, the page with all rows."""
    lines = ["| what | here | beside it | code | page |", "|---|---|---|---|---|"]
    for name, summarise in _SUMMARIES:
        if name in shown:
            link, age = f"[{_TITLES[name]}](_generated/benchmarks/{name}.md)", _age(shown[name])
            for what, here, beside in summarise(shown[name]["rows"], shown[name]["settings"]):
                lines.append(f"| {what} | {here} | {beside} | {age} | {link} |")
                link = age = ""
    return "\n".join(lines) + "\n"


def readme_with_figures(text: str) -> str:
    """Return README with the table between its marks made anew from the results.

    Parameters
    ----------
    text
        README as it is.
    """
    found = _found()
    rows = [
        f"| {' | '.join(line)} | {found[name]['commit'][:7]} |"
        for name, summarise in _SUMMARIES
        if name in _IN_README and name in found and is_shown(found[name])
        for line in summarise(found[name]["rows"], found[name]["settings"])
    ]
    lines = ["", "| what | here | beside it | commit |", "|---|---|---|---|", *rows] if rows else ["", _NONE_SHOWN, ""]
    before, _, rest = text.partition(_MARKS[0])
    return "\n".join([before + _MARKS[0], *lines, _MARKS[1] + rest.partition(_MARKS[1])[2]])


Line = tuple[str, str, str]
Settings = Mapping[str, Any]


def _share(rows: Rows, status: str = "optimal") -> str:
    return f"{sum(row['status'] == status for row in rows)} of {len(rows)}"


def _by(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(sorted(groups.items()))


def _ratios(rows: Rows, over: str, names: Iterable[str]) -> str:
    means = {name: geometric_mean(row[name] / row[over] for row in rows) for name in names}
    return ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())


def _inc_ilp(rows: dict[str, Rows], _settings: Settings) -> Iterator[Line]:
    runs = rows["runs"]
    cold = [{"status": row["cold_status"]} for row in runs]
    yield (
        "ten ImageNet graphs, k = 4, 5, 6, `memory`: proven optimal on all levels",
        _share(runs),
        (f"the full program, cold, on SCIP: {_share(cold)}"),
    )
    ours, theirs = [row["seconds"] for row in runs], [row["cold_seconds"] for row in runs]
    yield (
        "... seconds in a warm process, median and worst",
        f"{statistics.median(ours):.3f}, {max(ours):.3f}",
        (f"cold: {statistics.median(theirs):.1f}, {max(theirs):.1f}"),
    )
    by_k = [f"{geometric_mean(row['speedup'] for row in some):.0f}" for some in _by(runs, "k").values()]
    yield (
        "... speed-up over the cold program, geometric mean for k = 4, 5, 6",
        ", ".join(by_k),
        ("the paper, over CPLEX: 54, 128, 115"),
    )
    wide = [window["optimal"] for row in runs for window in row["windows"] if window["gamma"] == 10]
    yield (
        "... coarse start and one window on SCIP, gamma = 10: at the optimum",
        f"{sum(wide)} of {len(wide)}",
        ("the paper: 100%"),
    )


def _agent_stages(rows: Rows, _settings: Settings) -> Iterator[Line]:
    gaps = [f"{statistics.fmean(r['greedy']['gap'] for r in some):.2f}%" for some in _by(rows, "k").values()]
    took = statistics.fmean(row["greedy"]["ms"] for row in rows)
    yield (
        "learned agent, one greedy pass, the same graphs: mean gap for k = 4, 5, 6",
        f"{', '.join(gaps)} in {took:.1f} ms",
        "Inc-ILP's agent: 1.88%, 1.12%, 4.50%",
    )


def _zoo(rows: Rows, _settings: Settings) -> Iterator[Line]:
    worst = max(row["seconds"] for row in rows)
    yield f"20 ImageNet networks, k = 2 to 64, `pipeline`: proven optimal within {worst:.1f} s each", _share(rows), ""


def _regal(rows: Rows, settings: Settings) -> Iterator[Line]:
    shares = [f"{geometric_mean(r['bound'] / r['value'] for r in some):.3f}" for some in _by(rows, "k").values()]
    yield (
        f"REGAL's recipe, {settings['graphs']} graphs, {settings['time_limit_s']:g} s each: bound over value, k = "
        + ", ".join(str(k) for (k,) in _by(rows, "k")),
        ", ".join(shares),
        "the paper, k = 2 to 64, on its own graphs, with Gurobi for an hour: 0.980, 0.958, 0.941, 0.893, 0.591, 0.381",
    )


def _partitioning(rows: Rows, _settings: Settings) -> Iterator[Line]:
    yield "dnn-partitioning: proven optimal", _share(rows), ""
    for row in rows:
        peer = row["peer_seconds"]
        beside = "the authors' program fails" if peer is None else f"the authors' program, an earlier run: {peer:.3g} s"
        yield f"... {row['instance']}, {row['ops']} ops", f"{row['seconds']:.3g} s", beside


def _loose(rows: Rows, _settings: Settings) -> Iterator[Line]:
    gains = [1 - row["value_ms"] / row["contiguous_ms"] for row in rows]
    yield (
        "... ops on any device: seconds an input below the contiguous optimum, median and most",
        f"{statistics.median(gains):.1%}, {max(gains):.1%}",
        f"proven optimal: {_share(rows)}; largest gap {max(row['gap'] for row in rows):.1%}",
    )


def _latency(rows: Rows, settings: Settings) -> Iterator[Line]:
    yield (
        f"randomly wired networks on CPU, T4 and A100, `latency`, {len(rows)} problems: makespan over rlinit's",
        "1",
        _ratios(rows, "rlinit", ("heft", "ea", "sa")),
    )
    longer = [row for row in rows if "rlinit long" in row]
    cells = {
        f"{channels} {'channel' if channels == 1 else 'channels'}, {dependence}": statistics.fmean(
            r["gap"] for r in some
        )
        for (channels, dependence), some in _by(longer, "channels", "dependence").items()
    }
    worst, best = max(cells, key=lambda cell: cells[cell]), min(cells, key=lambda cell: cells[cell])
    yield (
        f"... proven gap after {settings['long_seconds']:g} s: best and worst kind ({best}; {worst})",
        f"{cells[best]:.1%}, {cells[worst]:.1%}",
        "the paper: 0% with one channel, 6 to 23% with several",
    )


def _batches(rows: Rows, settings: Settings) -> Iterator[Line]:
    yield (
        f"... `throughput` of {settings['inputs']} inputs, {settings['seconds']:g} s: makespan over rlinit's",
        "1",
        _ratios(rows, "rlinit", ("heft", "ea", "sa")),
    )
    gaps = [row["gap"] for row in rows]
    yield (
        f"... proven gap after {settings['long_seconds']:g} s",
        f"{min(gaps):.1%} to {max(gaps):.1%}",
        "the paper: 18 to 40%",
    )


def _split(rows: Rows, _settings: Settings) -> Iterator[Line]:
    for row in rows:
        modules, channels = row["modules"], row["channels"]
        reached = "reached it after" if row["milp_reached"] else "did not reach it in"
        yield (
            f"split, {modules} modules of ten nodes, {channels} channel{'s' * (channels > 1)}",
            f"{row['split_s']:.2g} s",
            f"the full program {reached} {row['milp_s']:.0f} s",
        )


def _small(rows: Rows, settings: Settings) -> Iterator[Line]:
    peers = [
        f"{name} proves {sum(row[name]['status'] == 'optimal' for row in rows)}, makespan "
        f"{geometric_mean(row[name]['value'] / row['value'] for row in rows):.2f} times ours"
        for name in ("cp_sat", "highs")
        if all(name in row for row in rows)
    ]
    worst = max(row["seconds"] for row in rows)
    yield (
        f"ten modules of ten nodes, one channel: proven optimal, within {worst:.1f} s each",
        _share(rows),
        f"in {settings['peer_seconds']:g} s " + "; ".join(peers) if peers else "",
    )


def _moirai(rows: Rows, _settings: Settings) -> Iterator[Line]:
    for row in rows:
        done = f"optimal in {row['seconds']:.0f} s" if row["status"] == "optimal" else f"gap {row['gap']:.2%}"
        yield f"Moirai's {row['instance']}, {row['case']}", done, f"HEFT {row['heft'] / row['rlinit'] - 1:.1%} longer"


def _task_graphs(what: str) -> Callable[[Rows, Settings], Iterator[Line]]:
    def lines(rows: Rows, _settings: Settings) -> Iterator[Line]:
        known = [row for row in rows if row["known_upper"]]
        at_best = sum(row["value"] <= row["known_upper"] * (1 + 1e-9) for row in known)
        longest, best = max(row["seconds"] for row in rows), f"at the best known value: {at_best} of {len(known)}"
        yield f"{what}, {longest:.0f} s at most: proven optimal", _share(rows), best

    return lines


def _models_run(rows: Rows, _settings: Settings) -> Iterator[Line]:
    equal = sum(row["equal"] for row in rows)
    yield "models run by random placements on three devices: outputs equal bit for bit", f"{equal} of {len(rows)}", ""


def _slicing(rows: Rows, _settings: Settings) -> Iterator[Line]:
    largest = max(rows, key=lambda row: (row["ops"], row["k"]))
    yield f"slicing {largest['ops']:,} ops into {largest['k']} stages", f"{largest['seconds']:.2g} s", ""


def _limits(rows: Rows, _settings: Settings) -> Iterator[Line]:
    kept = sum(row["kept"] for row in rows)
    yield "time limits kept within 5% and 0.3 s, kernels compiled", f"{kept} of {len(rows)}", ""


def _startup(rows: Mapping[str, Any], _settings: Settings) -> Iterator[Line]:
    imports = rows["imports"]
    yield "`import rlinit`", f"{imports['rlinit'] * 1e3:.0f} ms", f"`import numpy`: {imports['numpy'] * 1e3:.0f} ms"


_SUMMARIES: tuple[tuple[str, Callable[[Any, Settings], Iterator[Line]]], ...] = (
    ("inc_ilp", _inc_ilp),
    ("agent_stages_imagenet", _agent_stages),
    ("mtpp_zoo", _zoo),
    ("mtpp_regal", _regal),
    ("dnn_partitioning", _partitioning),
    ("dnn_partitioning_loose", _loose),
    ("diviml_table_1", _latency),
    ("diviml_table_4", _batches),
    ("diviml_table_3", _split),
    ("diviml_small", _small),
    ("moirai_instances", _moirai),
    ("task_graphs_communication", _task_graphs("task graphs with delays")),
    ("task_graphs_stg", _task_graphs("Standard Task Graphs")),
    ("task_graphs_flexible_job_shop", _task_graphs("flexible job shops")),
    ("executors_models", _models_run),
    ("slicing", _slicing),
    ("time_limits", _limits),
    ("startup", _startup),
)


_IN_README = ("inc_ilp", "mtpp_zoo", "diviml_table_1", "diviml_table_4", "task_graphs_stg", "startup")
_NONE_SHOWN = "No figures stand here: none was measured on the code as it is."
_MARKS = ("<!-- figures: python -m benchmarks.pages README.md -->", "<!-- end of figures -->")


def main() -> None:
    """Write the pages into a folder, or bring the figures of a README up to date."""
    path = Path(sys.argv[1])
    if path.suffix == ".md":
        path.write_text(readme_with_figures(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        write_pages(path)


if __name__ == "__main__":
    main()
