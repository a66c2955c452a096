"""Results as pages of Markdown."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from benchmarks.pages import write_pages
from benchmarks.record import RESULTS


def test_every_result_has_a_page_with_a_command_that_is_there(tmp_path: Path) -> None:
    """Each file of results becomes a page; the program that it names exists, and the list of pages has all of them."""
    write_pages(tmp_path)
    names = {path.stem for path in RESULTS.glob("*.json")}
    assert {path.stem for path in tmp_path.glob("*.md")} == names | {"summary", "pages"}
    listed = (tmp_path / "pages.md").read_text().splitlines()
    for name in names:
        assert name in listed
        (module,) = re.findall(r"^`python -m ([\w.]+)", (tmp_path / f"{name}.md").read_text(), re.MULTILINE)
        assert importlib.util.find_spec(module) is not None, f"{name}: {module}"


def test_pages_have_titles_and_no_raw_mappings(tmp_path: Path) -> None:
    """No page is headed by the name of a file, or prints what should be a table as Python writes it."""
    write_pages(tmp_path)
    for path in tmp_path.glob("*.md"):
        text = path.read_text()
        assert not text.startswith(f"# {path.stem}\n"), path.stem
        assert "{'" not in text, path.stem


def test_figures_come_from_the_results(tmp_path: Path) -> None:
    """The summary has a line for each of its results, with a link to the page."""
    write_pages(tmp_path)
    summary = (tmp_path / "summary.md").read_text()
    assert "proven optimal on all levels | 30 of 30 |" in summary
    for target in re.findall(r"\]\(_generated/benchmarks/([^)]+)\)", summary):
        assert (tmp_path / target).exists()
