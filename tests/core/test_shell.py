"""Command lines in messages."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

import coterie
from coterie.cli.app import app
from coterie.core.errors import UserError
from coterie.core.shell import coterie_command, shell_word

NAMES = [
    "run",
    "a  b",
    "it's",
    'say "x"',
    "$HOME",
    "-run",
    "--help",
    "a;b&c|d>e",
    "~",
    "*",
    "é 日本",
    "#1",
    "!x",
    "a\\b",
]
FIXED = {"other"}
"""Placeholders in commands whose values are words of Coterie, such as `greedy`."""


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_the_words_of_a_command_as_they_are(name: str):
    words = shlex.split(coterie_command("resume", Path(name), f"out={name}"))
    assert words[:2] == ["coterie", "resume"]
    assert Path(words[2]) == Path(name)
    assert not words[2].startswith("-")
    assert words[3:] == [f"out={name}"]


def test_plain_words_and_options_have_no_quotation_marks():
    assert coterie_command("play", Path("runs/a_1"), "--video", "out.mp4") == "coterie play runs/a_1 --video out.mp4"


@pytest.mark.parametrize("name", NAMES)
def test_errors_keep_the_spaces_of_a_quoted_path(name: str):
    message = str(UserError(f"out={name}:\n  exists. Continue with {shell_word(Path(name))}"))
    assert Path(shlex.split(message.partition("Continue with ")[2])[0]) == Path(name)


def test_no_message_has_a_command_with_an_unquoted_placeholder():
    names = [info.name or info.callback.__name__ for info in app.registered_commands if info.callback]
    commands = re.compile(rf"\b(coterie ({'|'.join(names)})|chmod) ([^`.]* )?$")
    found = []
    for path in sorted(Path(coterie.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                text = ""
                for part in node.values:
                    if isinstance(part, ast.Constant):
                        text += str(part.value)
                    elif isinstance(part, ast.FormattedValue):
                        is_quoted = ast.unparse(part.value).startswith(("coterie_command(", "shell_word(", "shlex."))
                        if commands.search(text) and not is_quoted and ast.unparse(part.value) not in FIXED:
                            found.append(f"{path.name}:{node.lineno}: {text}{{{ast.unparse(part.value)}}}")
                        text += "X"
    assert not found, "\n".join(found)
