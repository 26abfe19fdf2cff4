"""Strict parsing of YAML settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from coterie.assembly.resolve import load_resolved
from coterie.config.sources import from_file
from coterie.config.strict_yaml import MAX_VALUES, parse_settings
from coterie.core.errors import UserError
from mutations import FUZZ, assert_one_line, mutated

SETTINGS = b"""\
algo: ippo  # command line
env:
  name: matrix/rock_paper_scissors  # default
teams: {row: {algo.epochs: 2, roles: ["row"]}}
out: 'runs/x'
"""

LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_leaves_have_dotted_keys_and_lines():
    text = "a: {b: 1e-4, c: {}}\nd.e: [off, 010, 1_000]\nf: &x {g: ~}\nh: *x\n"
    assert parse_settings(text, "file") == [
        ("a.b", 1e-4, 1),
        ("a.c", {}, 1),
        ("d.e", ["off", 10, 1000], 2),
        ("f.g", None, 3),
        ("h.g", None, 3),
    ]
    assert parse_settings("a: [{1: !!str 2, b: !!int 3}, !!map {}]", "file") == [("a", [{"1": "2", "b": 3}, {}], 1)]
    assert parse_settings("\ufeff# nothing\n", "file") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("&e {name: *e}", r"file:1: .*an alias that contains itself"),
        ("a: &a [*a, *a]", r"file:1: .*an alias that contains itself"),
        ("a: !!map [1]", "file:1: the tag !!map is not supported"),
        ("a: !!seq {b: 1}", "file:1: the tag !!seq is not supported"),
        (LAUGHS, rf"file:\d+: more than {MAX_VALUES:,} values\. Use fewer aliases"),
        ("a: " + "[" * 60 + "]" * 60, r"file: more than 50 nested mappings and lists"),
        ("a: " + "[" * 5000, "file: more than 50 nested mappings and lists"),
        ("a: " + "9" * 5000, "file: invalid YAML: the integer 999.* has more than 64 bits"),
        ("a: 1\nb: \x1b[31m", r"file: invalid YAML: the control character \\x1b at character 9\. Remove it"),
        ('a: 1\nb: "\\x1b[31m"', r"file:2: contains the control character \\x1b\. Remove it"),
        ('a: "\\ud800"', r"file:1: contains the control character \\ud800"),
        ('"a\\nb": 1', r"file:1: the key 'a\\nb' contains a control character"),
        ("a: 1\nb: 2\na: 3", "file:3: a: given twice"),
        ("a: [{b: 1, b: 2}]", "file:1: b: given twice"),
        ("a: !!binary eA==", r"file:1: the tag !!binary is not supported\. Remove it"),
        ("a: !!timestamp x", "file:1: the tag !!timestamp is not supported"),
        ("a: !!bool x", "file:1: the tag !!bool is not supported"),
        ("? [a]\n: 1", "file:1: a key is not a word"),
        ("~: 1", "file:1: a key is not a word"),
        ("a" * 201 + ": 1", "file:1: a.*: longer than 200 characters"),
        ("[1]", "file:1: expected settings"),
        ("a: 1\n--- \nb: 2", "file:2: invalid YAML"),
    ],
)
def test_hostile_text_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as refusal:
        parse_settings(text, "file")
    assert_one_line(str(refusal.value))


@pytest.mark.slow
@FUZZ
@given(content=mutated(SETTINGS))
def test_mutated_files_are_read_or_refused_in_one_line(content, tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    try:
        from_file(file, saved=True)
    except UserError as error:
        assert_one_line(str(error))


@pytest.mark.slow
@settings(FUZZ, max_examples=100)  # a configuration takes much longer than parsing
@given(content=mutated(SETTINGS))
def test_mutated_files_are_configurations_or_refused_in_one_line(content, tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    try:
        load_resolved(file)
    except UserError as error:
        assert_one_line(str(error))
