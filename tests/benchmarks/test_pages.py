"""Results as pages of Markdown, and what they say of the code that made them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks import pages, provenance, record
from benchmarks.__main__ import stale
from benchmarks.pages import readme_with_figures, write_pages
from benchmarks.record import RESULTS

README = Path(__file__).parents[2] / "README.md"


@dataclasses.dataclass
class Result:
    """A file of results in a folder of its own, made by today's code."""

    path: Path

    def edit(self, **fields: object) -> dict[str, object]:
        """Write the file with some of its fields changed; return what it holds."""
        data = json.loads(self.path.read_text()) | fields
        self.path.write_text(json.dumps(data))
        return dict(data)


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Save one row as the benchmark of start-up does, in a folder of the test's own."""
    for module in (record, pages):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "results")
    monkeypatch.setattr(provenance, "_loaded_sources", lambda: {"rlinit": "errors"})  # a worker has loaded everything
    record.save("slicing", [{"ops": 10, "k": 2, "seconds": 0.5}])
    made = Result(tmp_path / "results" / "slicing.json")
    made.edit(commit="0" * 40, clean=True)
    return made


def test_a_file_without_a_clean_commit_is_not_shown(result: Result, tmp_path: Path) -> None:
    """Rows of an unknown or changed tree are on no page and in no summary; the page that links lead to says why."""
    for fields in ({"commit": None}, {"clean": False}):
        original = json.loads(result.path.read_text())
        result.edit(**fields)
        write_pages(tmp_path / "site")
        assert "does not say which code" in (tmp_path / "site" / "slicing.md").read_text()
        assert "slicing 10 ops" not in (tmp_path / "site" / "summary.md").read_text()
        assert stale() == {"slicing": "does not say which commit made it"}
        result.edit(**original)


def test_the_recorded_command_is_shown_as_it_was_run(result: Result, tmp_path: Path) -> None:
    """A command that is no longer there is not replaced by today's."""
    result.edit(command="python -m benchmarks.gone --old")
    write_pages(tmp_path / "site")
    assert "`python -m benchmarks.gone --old`" in (tmp_path / "site" / "slicing.md").read_text()
    assert "slicing 10 ops into 2 stages" in (tmp_path / "site" / "summary.md").read_text()


def test_only_changed_code_that_was_loaded_makes_a_result_stale(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments, docstrings and reasons of phases do not count, a changed line and a deleted module do."""
    (tmp_path / "part").mkdir()
    module = tmp_path / "part" / "module.py"
    module.write_text('x = dict(y=1, because="it is quick")\n')
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    sources = {"part": "module"}
    data = result.edit(sources=sources, sources_hash=provenance._digest(sources))
    assert not provenance.is_stale(data)
    said = '"""Say."""\nx = dict(y=1, because="0.9 of the time")  # one\n'
    for text, changed in ((said, False), (said.replace("1", "2"), True)):
        module.write_text(text)
        provenance._hash_of_file.cache_clear()
        assert provenance.is_stale(data) == changed
    module.unlink()
    provenance._hash_of_file.cache_clear()
    assert provenance.is_stale(data)


def test_what_a_process_loaded_is_recorded() -> None:
    """The modules behind a figure are named by folder, without those that only write figures down."""
    sources = provenance._loaded_sources()
    assert "errors" in sources["rlinit"].split()
    assert "benchmarks" not in sources


def test_readme_quotes_what_the_results_hold() -> None:
    """The table of README is the one that its files give."""
    text = README.read_text(encoding="utf-8")
    assert text == readme_with_figures(text)


def test_pages_have_titles_and_no_raw_mappings(tmp_path: Path) -> None:
    """Every file of results has a page; none is headed by a file's name or prints a mapping as Python writes it."""
    write_pages(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.md")} == {path.stem for path in RESULTS.glob("*.json")} | {
        "summary",
        "pages",
    }
    for path in tmp_path.glob("*.md"):
        text = path.read_text()
        assert not text.startswith(f"# {path.stem}\n"), path.stem
        assert "{'" not in text, path.stem
    for target in re.findall(r"\]\(_generated/benchmarks/([^)]+)\)", (tmp_path / "summary.md").read_text()):
        assert (tmp_path / target).exists()
