"""Hostile variants of valid documents, for tests of parsers."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

HOSTILE = (
    *(b"&e {name: *e}", b"&e [*e, *e]", b"*e", b"a: &a [*a]", b"[" * 5000, b"{" * 500, b'{"a":' * 500, b"- " * 500),
    *(b"9" * 5000, b"-" + b"9" * 400, b"9223372036854775808", b"1e999", b"0x" + b"f" * 5000, b"NaN", b"-Infinity"),
    *(
        b"\x00",
        b"\x07",
        b"\x1b]0;title\x07",
        b"\x7f",
        b"\xc2\x9b31m",
        b"\xe2\x80\xae",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
    ),
    *(b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u001b", b'"\\x1b"', b'"\\0"', b"\xf3\xa0\x80\x81"),
    *(b"!!binary x", b"!!timestamp x", b"!!bool x", b"!!set {a}", b"!!python/object:os.system x", b"!x y", b"<<: *a"),
    *(b"? [a]\n", b"1: 2\n", b"{1: [2]}", b"%YAML 9.9\n", b"\n---\n", b"...", b"|\n", b">\n", b"\t", b"#", b"\r"),
    *(
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b"0",
        b"-1",
        b"1.5",
        b'"',
        b"'",
        b"\\",
        b",",
        b":",
        b"=",
        b"[",
        b"}",
        b"\n",
    ),
)
"""What parsers of YAML, JSON and settings stumble over."""

FUZZ = settings(
    max_examples=2000,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Settings of a test with mutated documents: the same 2,000 of them each time."""

_PLACE = st.floats(0, 1, width=32)
_CHANGE = st.tuples(
    st.sampled_from(["insert", "replace", "delete", "duplicate", "swap"]),
    _PLACE,
    st.integers(1, 40),
    _PLACE,
    st.sampled_from(HOSTILE) | st.binary(min_size=1, max_size=3),
)


def mutated(document: bytes) -> st.SearchStrategy[bytes]:
    """Returns documents with one to three changes: text inserted, replaced, deleted, repeated or moved."""
    return st.lists(_CHANGE, min_size=1, max_size=3).map(lambda changes: _apply(document, changes))


def _apply(document: bytes, changes: list[tuple[str, float, int, float, bytes]]) -> bytes:
    for kind, place, length, other, text in changes:
        start = round(place * len(document))
        stop = min(start + length, len(document))
        part = document[start:stop]
        if kind == "insert":
            document = document[:start] + text + document[start:]
        elif kind == "replace":
            document = document[:start] + text + document[stop:]
        elif kind == "delete":
            document = document[:start] + document[stop:]
        elif kind == "duplicate":
            document = document[:stop] + part + document[stop:]
        else:
            rest = document[:start] + document[stop:]
            at = round(other * len(rest))
            document = rest[:at] + part + rest[at:]
    return document


def assert_one_line(message: str) -> None:
    """Asserts that a message is one line of printable characters, and not a copy of the whole document."""
    assert message
    assert message.isprintable(), message
    assert len(message) < 2000, message
