"""The grammar of the command line's `key=value`: Hydra's basic one, with sweeps.

override := key "=" value {"," value}          several values are a sweep
key      := word {"." word}
value    := "[" values "]" | "{" word ":" value ... "}" | "'" text "'" | '"' text '"' | primitive
primitive:= null | true | false | whole number | number | any other text
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from coterie.errors import UserError

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_WHOLE = re.compile(r"[-+]?\d+(_\d+)*")
_NUMBER = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf|nan", re.IGNORECASE)
_WORDS: dict[str, Any] = {"null": None, "~": None, "true": True, "false": False}


@dataclass(frozen=True)
class Override:
    """One `key=value` as it was written: the values' own words, and what they mean; several are a sweep."""

    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]

    @property
    def is_sweep(self) -> bool:
        return len(self.values) > 1

    @property
    def text(self) -> str:
        return f"{self.key}={','.join(self.texts)}"


def primitive(text: str) -> Any:
    """What an unquoted word means: null, a boolean, a number (`1e6`, `2_000_000`), or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def parse(text: str) -> Override:
    """Reads one `key=value`. UserError says what is wrong with it."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise UserError(f"'{text}' is no setting: write key=value, e.g. algo.lr=3e-4")
    if key[:1] in {"+", "~"}:
        raise UserError(
            f"'{text}': leave out the '{key[0]}'; every key is there already: write {key.strip('+~')}=VALUE"
        )
    if not _KEY.fullmatch(key):
        raise UserError(f"'{text}': '{key}' is no key: write words joined by dots, e.g. algo.lr=3e-4")
    if not value.strip():
        raise UserError(f"'{text}' has no value: write {key}=VALUE ({key}=null for none)")
    values, texts = _Reader(text, value).sweep()
    return Override(key, values, texts)


def parse_all(texts: list[str]) -> list[Override]:
    """Reads every setting of a command line. UserError where one cannot be read or a key is given twice."""
    overrides = [parse(text) for text in texts]
    seen: dict[str, Override] = {}
    for override in overrides:
        name = canonical(override.key)
        if name in seen:
            raise UserError(f"{override.key} is given twice: '{seen[name].text}' and '{override.text}'; keep one")
        seen[name] = override
    return overrides


def canonical(key: str) -> str:
    """The key of the value itself: `algo` stands for `algo.name`, `teams.X.run` for `teams.X.algo.run`."""
    if key in {"algo", "env"}:
        return f"{key}.name"
    parts = key.split(".")
    if len(parts) == 3 and parts[0] == "teams":
        if parts[2] == "algo":
            return f"{key}.name"
        if parts[2] == "run":
            return f"teams.{parts[1]}.algo.run"
    return key


def combinations(overrides: list[Override]) -> list[list[str]]:
    """Every combination of the sweeps as lists of `key=value`; the last sweep varies fastest."""
    choices = [[f"{override.key}={text}" for text in override.texts] for override in overrides]
    return [list(combination) for combination in itertools.product(*choices)]


class _Reader:
    """Reads a value from left to right."""

    def __init__(self, whole: str, text: str):
        self._whole, self._text, self._at = whole, text, 0

    def sweep(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        values: list[Any] = []
        texts: list[str] = []
        while True:
            start = self._at
            values.append(self._value(","))
            texts.append(self._text[start : self._at].strip())
            if self._at == len(self._text):
                return tuple(values), tuple(texts)
            self._take(",")

    def _fail(self, what: str) -> UserError:
        return UserError(f"'{self._whole}': {what}")

    def _peek(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._fail(f"expected '{sign}' after '{self._text[: self._at]}'")
        self._at += 1

    def _value(self, stops: str) -> Any:
        sign = self._peek()
        if sign == "[":
            value = self._list()
        elif sign == "{":
            value = self._mapping()
        elif sign in {"'", '"'} and sign:
            value = self._quoted(sign)
        else:
            return primitive(self._bare(stops))
        self._peek()  # skips blanks
        return value

    def _bare(self, stops: str) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in stops:
            self._at += 1
        word = self._text[start : self._at].strip()
        if not word:
            raise self._fail("a value is missing between the signs; quote the text if a comma belongs to it")
        return word

    def _quoted(self, quote: str) -> str:
        self._at += 1
        letters: list[str] = []
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter == "\\" and self._text[self._at : self._at + 1] in {quote, "\\"}:
                letters.append(self._text[self._at])
                self._at += 1
            elif letter == quote:
                return "".join(letters)
            else:
                letters.append(letter)
        raise self._fail(f"the quote {quote} is not closed")

    def _list(self) -> list[Any]:
        self._take("[")
        items: list[Any] = []
        while self._peek() != "]":
            items.append(self._value(",]"))
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "]":
                raise self._fail("the list is not closed: expected ']'")
        self._take("]")
        return items

    def _mapping(self) -> dict[str, Any]:
        self._take("{")
        items: dict[str, Any] = {}
        while self._peek() != "}":
            key = self._quoted(self._peek()) if self._peek() in {"'", '"'} else self._bare(":,}")
            if self._peek() != ":":
                raise self._fail(f"expected ':' after '{key}'")
            self._at += 1
            items[key] = self._value(",}")
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise self._fail("the mapping is not closed: expected '}'")
        self._take("}")
        return items
