"""Hostile variants of valid documents, for tests of parsers."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, settings
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
"""Text that breaks careless parsers of YAML, JSON and settings."""

FUZZ = settings(
    max_examples=500,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Settings of a test with mutated documents: the same 500 of them each time."""


def mutated(document: bytes) -> st.SearchStrategy[bytes]:
    """Returns documents with one to three changes: text inserted, replaced, deleted, repeated or moved."""
    return st.integers(0, 2**64 - 1).map(lambda seed: mutate(document, random.Random(seed)))


def mutate(document: bytes, rng: random.Random) -> bytes:
    """Returns a document with one to three changes."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(document))
        stop = min(start + rng.randint(0, 40), len(document))
        before, part, after = document[:start], document[start:stop], document[stop:]
        text = rng.choice(HOSTILE) if rng.random() < 0.8 else rng.randbytes(rng.randint(1, 3))
        rest = before + after
        at = rng.randint(0, len(rest))
        document = rng.choice(
            [before + text + part + after, before + text + after, rest, before + 2 * part + after]
            + [rest[:at] + part + rest[at:]]
        )
    return document


def assert_one_line(message: str) -> None:
    """Asserts that a message is one line of printable characters, and not a copy of the whole document."""
    assert message
    assert message.isprintable(), message
    assert len(message) < 4000, message  # hostile texts have 5,000 characters, a list of all environments 3,000
