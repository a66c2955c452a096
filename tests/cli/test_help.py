"""Help: what `rlinit --help` lists, quickly, and texts that are written for users."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from docstring_parser import parse_from_object

from rlinit.cli.main import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_a_command_says_of_itself(name: str) -> None:
    """The lines of the list are short enough for 80 columns, and are the first ones of the commands' own help."""
    entry = COMMANDS[name]
    said = (entry.find(entry.options).__doc__ or "").splitlines()[0]
    assert said == entry.line
    assert len(said) <= 62
    assert callable(entry.find(entry.carry_out))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_line_that_ends_within_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of a flag's text is shown as a paragraph: it ends where a sentence or a point of a list does."""
    entry = COMMANDS[name]
    waiting = [entry.find(entry.options)]
    while waiting:
        kind = waiting.pop()
        groups = [one.default_factory for one in dataclasses.fields(kind)]
        waiting += [one for one in groups if isinstance(one, type) and dataclasses.is_dataclass(one)]
        for each in kind.__mro__[:-1]:
            for param in parse_from_object(each).params:
                for line in (param.description or "").splitlines():
                    assert line.rstrip().endswith((".", ";", ":")), f"--{param.arg_name}: {line!r}"
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "``" not in out
    assert "Raises" not in out


def test_the_list_of_commands_imports_no_command() -> None:
    """`rlinit --help` waits for no command, no array and no graph to be imported."""
    code = (
        "import sys; from rlinit.cli.main import main; main(['--help'])\n"
        "print('LOADED', [m for m in sys.modules if m in ('numpy', 'joblib', 'rlinit.graph', 'rlinit.cli.schedule')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "doctor" in out
    assert "LOADED []" in out
