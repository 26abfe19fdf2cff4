"""Strict parsing of JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from coterie.core.errors import UserError
from coterie.core.strict_json import MAX_DEPTH, parse, read_object
from mutations import FUZZ, assert_one_line, mutated

VALUE = {"a": [1, -2.5, None, True, {"b": {}, "c": []}], "name": "x\u0000\u202ey", "n": 2**63 - 1, "m": -(2**63)}


def test_values_are_those_of_json():
    assert parse(json.dumps(VALUE)) == parse(json.dumps(VALUE).encode()) == VALUE
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        (b"\xff", "can't decode byte 0xff"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given twice"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "the number 1e999 is too large"),
        ("9" * 5000, "has more than 64 bits"),
        (str(2**63), "the integer 9223372036854775808 has more than 64 bits"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "more than 100 nested objects and lists"),
        ("[" * 100_000, "more than 100 nested objects and lists"),
        ('"\x1b"', "Invalid control character"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_other_text_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason) as refusal:
        parse(text)
    assert_one_line(str(refusal.value))


@pytest.mark.parametrize(
    ("content", "reason"), [(b"[1]", "not a JSON object"), (b"{", "Expecting"), (None, "No such file")]
)
def test_a_file_that_is_no_object_is_refused_with_its_name_and_the_fix(content, reason, tmp_path: Path):
    file = tmp_path / "file.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=rf"file\.json: cannot be read \(.*{reason}.*\)\. Write it again\.$"):
        read_object(file, "Write it again.")


@pytest.mark.slow
@FUZZ
@given(text=mutated(json.dumps(VALUE).encode()))
def test_mutated_json_is_parsed_or_refused_in_one_line(text):
    try:
        value = parse(text)
    except ValueError as error:
        assert_one_line(str(error))
    else:
        json.dumps(value, allow_nan=False)
