"""Text from outside."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cli.app import app
from coterie.core.errors import NonFiniteError, UserError, message_of, nearest, one_line
from coterie.core.terminal import print_line, print_message, print_traceback
from coterie.core.text import (
    coterie_command,
    find_control_character,
    parse_integer,
    printable,
    shell_word,
    shorten_middle,
)
from mutations import FUZZ


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run 1 · 日本 ▁█", "run 1 · 日本 ▁█"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\tc\rd\x00\x7f", r"a\nb\tc\rd\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("\ud800\U000e0001", r"\ud800\U000e0001"),
        (r"C:\x1b", r"C:\x1b"),
    ],
)
def test_characters_that_are_not_printable_become_escapes(text, shown):
    assert printable(text) == printable(shown) == shown


@pytest.mark.slow
@FUZZ
@given(st.text(st.characters(exclude_categories=())))
def test_every_text_becomes_printable(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert message_of(ValueError(text)).isprintable()


def test_exceptions_and_tracebacks_are_shown_with_escapes(capsys: pytest.CaptureFixture[str]):
    error = ValueError("a\x1b]0;t\x07\r\x9b31m\u202e\u2028b\x85c")
    assert one_line(error) == r"ValueError: a\x1b]0;t\x07 \x9b31m\u202e b c"
    try:
        raise error
    except ValueError:
        print_traceback()
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith(r"ValueError: a\x1b]0;t\x07\r\x9b31m\u202e\u2028b\x85c" + "\n")
    assert all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.parametrize("text", ["a\x1b", "a\x00", "\x85", "\r", "\ud800"])
def test_control_characters_are_found(text):
    assert find_control_character(text) == text[-1]


def test_integers_have_at_most_64_bits():
    assert parse_integer("-9_223_372_036_854_775_808") == -(2**63)
    assert parse_integer("+0009223372036854775807") == 2**63 - 1
    for text in ("9223372036854775808", "-9223372036854775809", "9" * 5000):
        with pytest.raises(ValueError, match="has more than 64 bits"):
            parse_integer(text)


def test_errors_are_one_printable_line_also_after_pickling():
    for cls in (UserError, NonFiniteError):
        error = pickle.loads(pickle.dumps(cls("team '\x1b[31m':\n  no\tsuch team")))
        assert type(error) is cls
        assert str(error) == r"team '\x1b[31m': no such team"


def test_lines_on_the_terminal_have_no_control_characters(capsys: pytest.CaptureFixture[str]):
    print_line("team \x1b[31m")
    print_message("team\n\x9b31m")
    output, errors = capsys.readouterr()
    assert (output, errors) == ("team \\x1b[31m\n", "coterie: team\\n\\x9b31m\n")


def test_only_one_module_prints():
    """Other modules print through it, or with rich, whose texts are escaped in `runs`."""
    root = Path(coterie.__file__).parent
    own_programs = {"core/terminal.py", "envs/external/unity/install.py"}
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).as_posix() not in own_programs
        and re.search(r"\bprint\(|\.write\(|\becho\(", path.read_text())  # the others need not be parsed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "print")
            or ast.unparse(node.func) in {"sys.stdout.write", "sys.stderr.write", "typer.echo"}
        )
    ]
    assert found == []


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 5000])
def test_a_long_text_keeps_its_start_and_its_end(length: int):
    text = "".join(str(i % 10) for i in range(length))
    short = shorten_middle(text, 100)
    assert len(short) <= 100
    assert short == text if length <= 100 else text.startswith(short.split(" ... ")[0])
    assert text.endswith(short.split(" ... ")[-1])


def test_a_message_of_any_length_keeps_its_start_and_its_fix():
    message = str(UserError(f"out={'x' * 100_000}: not a folder. Name another one."))
    assert len(message) < 1000
    assert message.startswith("out=xxx")
    assert message.endswith("x: not a folder. Name another one.")


@pytest.mark.parametrize("count", [0, 1, 5, 300])
@pytest.mark.parametrize("width", [5, 2000])
def test_choices_are_listed_up_to_a_length_and_the_others_counted(count: int, width: int):
    choices = [f"{i:0{width}}" for i in range(count)]
    text = nearest("q", choices)
    assert len(text) < 700
    shown = [name for name in choices if name in text]
    if count * width < 500:
        assert shown == choices
    elif count > 1:
        assert text.endswith(f" and {count - max(1, len(shown))} others.")


NAMES = ["run", "a  b", "it's", 'say "x"', "$HOME", "-run", "a;b&c|d>e", "~", "*", "é 日本", "#1", "!x", "a\\b"]
FIXED = {"other"}
"""Placeholders in commands whose values are words of Coterie, such as `greedy`."""


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_the_words_of_a_command_as_they_are(name: str):
    words = shlex.split(coterie_command("resume", Path(name), f"out={name}"))
    assert words[:2] == ["coterie", "resume"]
    assert Path(words[2]) == Path(name)
    assert not words[2].startswith("-")
    assert words[3:] == [f"out={name}"]


@pytest.mark.parametrize("name", NAMES)
def test_errors_keep_the_spaces_of_a_quoted_path(name: str):
    message = str(UserError(f"out={name}:\n  exists. Continue with {shell_word(Path(name))}"))
    assert Path(shlex.split(message.partition("Continue with ")[2])[0]) == Path(name)


def test_no_message_has_a_command_with_an_unquoted_placeholder():
    names = [info.name or info.callback.__name__ for info in app.registered_commands if info.callback]
    commands = re.compile(rf"\b(coterie ({'|'.join(names)})|chmod) ([^`.]* )?$")
    found = []
    for path in sorted(Path(coterie.__file__).parent.rglob("*.py")):
        code = path.read_text()
        if not re.search(r"coterie |chmod ", code):  # it need not be parsed
            continue
        for node in ast.walk(ast.parse(code)):
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
