"""Hostile values of settings, options and JSON, and words of a command line that are mutated with them."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence

NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "0.5", "1.5", "-0.0", "1e308", "-1e308", "1e309", "1e-320", "nan", "inf", "-inf"),
    *("1e30", "1e15", "2147483648", "9007199254740993", "9223372036854775807", "9223372036854775808", "9" * 400),
    *("0x10", "0o17", "1_0", "1_", "1e", "1e99999", "1k", "2M", "50%", "1,5", "1 000", "+-1", "\u0663", "\uff11\uff12"),
    *("1:30:00", "2020-01-01", ".5", "5.", "--1", "1e-9", "-1e-9", "0.1,0.2", "1-3"),
)
"""Numbers that are extreme, not finite, or written in an unusual way."""

TEXTS = (
    *("", " ", "null", "~", "none", "off", "true", "false", "yes", "auto", "last", "best:", "best:nobody", "x"),
    *("X" * 5000, "\u65e5\u672c\u8a9e", "\u202egnp", "\x1b[31mred", "\x07", "a\tb", "a\nb", "\r", "\udcff", "\u0130"),
    *("\U0001f600", "\x85", "$(id)", "`id`", "%s%d%n", "{0}", "{out}", "x=y", "=", "a.b.c", "-", "--", "-x", "'", '"'),
    *("\\", "#", "a # b", "@x", "/dev/null", "/dev/null/x", ".", "..", "nowhere/nothing", "tag", "config.yaml"),
    *("~nobody", "*", "[a-", "**/*", "math:sqrt", "json:nothing", "nosuch_module:make", ":make", "json:", "a:b:c"),
    *("http://[", "file:///x", "os"),
)
"""Texts that are empty, long, not ASCII, or mean something to a shell, a terminal, a format string or a file system."""

STRUCTURES = (
    *("[]", "{}", "[1]", "[-1]", "[0]", "[1,", "{a: 1", "]", "}", "[[1]]", "[nan]", "[1e400]", "[null]", "[a, 1, {}]"),
    *("{a: 1, a: 2}", "{a: {b: {c: 1}}}", "{1: 2}", "{[1]: 2}", "[" * 500, "{a: " * 300, "[" * 300 + "]" * 300),
    *("!!python/object/apply:os.getcwd []", "!!binary x", "!!timestamp x", "!x y", "&a [*a]", "*a", "<<: 1", "? x"),
    *("{uniform: [0, 1]}", "{uniform: [1, 0]}", "{uniform: nan}", "{choice: []}", "[64] * 10000000", "a: b: c", "| x"),
    *("[1, 1, 1, 1, 1, 1, 1, 1]", "[" + "1, " * 3000 + "1]", "{name: x}", "{algo: random}", "range()", "log(0,1)"),
    *("int(5,1)", "choice()", "uniform(0,nan)", "log(1e-4,1e-2)", "choice(1,a,[])"),
)
"""Lists, mappings, YAML tags and ranges, valid and invalid."""

HOSTILE = (*NUMBERS, *TEXTS, *STRUCTURES)

JSON_VALUES = (
    *("null", "true", "false", "0", "-1", "1.5", "-0.0", "NaN", "Infinity", "-Infinity", "1e999", "1e-320", "1e308"),
    *("9" * 5000, "-" + "9" * 400, "9223372036854775808", "2147483648", '""', '"x"', '"nan"', "[]", "{}", "[[]]"),
    *(r'"\ud800"', r'"\u0000"', r'"\u001b[31m"', r'"\u202e"', '"<script>"', '"\u65e5\u672c"', '"../../.."'),
    *('{"a": 1, "a": 2}', "[1, 2, 3]", '["x"]', '{"x": {}}', "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300),
    *('"' + "x" * 5000 + '"', "[" + "0," * 3000 + "0]", '"math:sqrt"', "1" + "0" * 30, "[null]", "tru", "'x'"),
)  # fmt: skip
"""JSON texts that replace a value of a file."""


def misspelled(word: str, generator: random.Random) -> str:
    """Returns a word similar to `word`, which is not empty: a letter or a part of it changed, removed or added."""
    at = generator.randrange(len(word))
    return generator.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + generator.choice(string.ascii_letters) + word[at:],
            word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
            word[:at] + generator.choice("_-. \u0430\u0435\u200b") + word[at + 1 :],
            *(word.upper(), f"{word}.x", f".{word}", f"{word}.", f"x.{word}", f"{word}[0]", f"+{word}", word * 200),
        )
    )


def key_of(word: str) -> str:
    """Returns the key of a setting KEY=VALUE, or an empty text for another word."""
    key, equals, _ = word.partition("=")
    return key if equals and not key.startswith("-") else ""


# ---------------------------------------------------------------------------------------------- words of a command


def _with_value(words: list[str], generator: random.Random) -> list[str]:
    """Replaces a word after the command, or the value of one that is a setting."""
    at = generator.randrange(1, len(words))
    key = key_of(words[at])
    value = generator.choice(HOSTILE)
    return [*words[:at], f"{key}={value}" if key else value, *words[at + 1 :]]


def _without(words: list[str], generator: random.Random) -> list[str]:
    at = generator.randrange(1, len(words))
    return [*words[:at], *words[at + 1 :]]


def _repeated(words: list[str], generator: random.Random) -> list[str]:
    return [*words, generator.choice(words[1:])]


def _misspelled(words: list[str], generator: random.Random) -> list[str]:
    at = generator.randrange(len(words))
    key = key_of(words[at])
    if key:
        changed = misspelled(key, generator) + words[at][len(key) :]
    else:
        changed = misspelled(words[at], generator) if words[at] else "x"
    return [*words[:at], changed, *words[at + 1 :]]


def _swapped(words: list[str], generator: random.Random) -> list[str]:
    one, other = (generator.randrange(1, len(words)) for _ in range(2))
    changed = list(words)
    changed[one], changed[other] = words[other], words[one]
    return changed


def _appended(words: list[str], generator: random.Random) -> list[str]:
    return [*words, generator.choice(HOSTILE)]


WORD_MUTATIONS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "word or its value replaced": _with_value,
    "word removed": _without,
    "word repeated": _repeated,
    "word misspelled": _misspelled,
    "words exchanged": _swapped,
    "word appended": _appended,
}
"""Mutations of a command line, of which the first word is the command, by name."""


def mutated_words(words: Sequence[str], generator: random.Random) -> tuple[str, list[str]]:
    """Returns the name of a mutation and the mutated words, of which there must be at least two."""
    name = generator.choice(list(WORD_MUTATIONS))
    return name, WORD_MUTATIONS[name](list(words), generator)
