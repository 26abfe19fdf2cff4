"""Parser of `key=value` settings on the command line: Hydra's basic override grammar with sweeps.

override := key "=" value {"," value}          several values define a sweep
key      := word {"." word}
value    := "[" values "]" | "{" word ":" value ... "}" | "'" text "'" | '"' text '"' | primitive
primitive:= null | true | false | integer | number | any other text
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from coterie.config.messages import format_value
from coterie.core.errors import UserError
from coterie.core.text import find_control_character, parse_integer, shorten

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_NUMBER = re.compile(r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf|nan", re.IGNORECASE)
MAX_KEY = 200
"""Maximum number of characters of a key."""
_MAX_DEPTH = 50
"""Maximum number of nested lists and mappings in a value."""
_WORDS: dict[str, Any] = {"null": None, "~": None, "true": True, "false": False}


@dataclass(frozen=True)
class Override:
    """One parsed `key=value`.

    Attributes:
        key: Dotted key.
        values: Parsed values; several define a sweep.
        texts: Text of each value.
    """

    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]

    @property
    def is_sweep(self) -> bool:
        return len(self.values) > 1

    @property
    def text(self) -> str:
        return f"{self.key}={','.join(self.texts)}"


def parse_primitive(text: str) -> Any:
    """Returns the value of an unquoted word: null, a boolean, a number (`1e6`, `2_000_000`), or the text itself.

    Raises:
        ValueError: If it is an integer of more than 64 bits.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return parse_integer(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def is_number(text: str) -> bool:
    """True for text that denotes a number. Python also accepts digits of other scripts and `1_.0`."""
    return _NUMBER.fullmatch(text.strip()) is not None


def parse(text: str) -> Override:
    """Parses one `key=value`.

    Raises:
        UserError: If it is malformed.
    """
    key, equals, value = text.partition("=")
    key, shown = key.strip(), shorten(text)
    if character := find_control_character(text):
        raise UserError(f"'{shown}': contains the control character {character!r}. Remove it.")
    if not equals:
        raise UserError(f"'{shown}': expected key=value, e.g. algo.lr=3e-4")
    if key[:1] in {"+", "~"}:
        raise UserError(
            f"'{shown}': remove the '{key[0]}', because all keys exist already. Write {shorten(key.strip('+~'))}=VALUE"
        )
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY:
        raise UserError(
            f"'{shown}': '{shorten(key)}' is not a key. A key consists of words joined by dots, e.g. algo.lr=3e-4"
        )
    if not value.strip():
        raise UserError(f"'{shown}': the value is missing. Write {shorten(key)}=VALUE, or {shorten(key)}=null for none")
    values, texts = _Parser(text, value).sweep()
    return Override(key, values, texts)


def parse_all(texts: list[str]) -> list[Override]:
    """Parses all settings of a command line. If a key is given twice, the last value wins.

    Raises:
        UserError: If a setting is malformed.
    """
    last: dict[str, Override] = {}
    for override in map(parse, texts):
        name = canonical(override.key)
        last.pop(name, None)
        last[name] = override
    return list(last.values())


def canonical(key: str) -> str:
    """Returns the full key of an abbreviation.

    It is `algo.name` for `algo`, `algo.network` for `network`, `teams.X.algo.run` for `teams.X.run`, and so on.
    """
    if key in {"algo", "env"}:
        return f"{key}.name"
    if key in {"network", "critic_network", "mixer"}:
        return f"algo.{key}"
    parts = key.split(".")
    if len(parts) == 3 and parts[0] == "teams":
        if parts[2] == "algo":
            return f"{key}.name"
        if parts[2] in {"run", "network", "critic_network", "mixer"}:
            return f"teams.{parts[1]}.algo.{parts[2]}"
    return key


def combinations(overrides: list[Override]) -> list[list[str]]:
    """Returns all combinations of the sweeps as lists of `key=value`; the last sweep varies fastest."""
    choices = [[f"{override.key}={text}" for text in override.texts] for override in overrides]
    return [list(combination) for combination in itertools.product(*choices)]


class _Parser:
    """Recursive-descent parser of one setting's value."""

    def __init__(self, setting: str, text: str):
        self._setting, self._text, self._position, self._depth = setting, text, 0, 0

    def sweep(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        values: list[Any] = []
        texts: list[str] = []
        while True:
            start = self._position
            values.append(self._value(","))
            texts.append(self._text[start : self._position].strip())
            if self._position == len(self._text):
                return tuple(values), tuple(texts)
            self._expect(",")

    def _error(self, problem: str) -> UserError:
        return UserError(f"'{shorten(self._setting)}': {problem}")

    def _peek(self) -> str:
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1
        return self._text[self._position : self._position + 1]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._error(f"expected '{character}' after '{shorten(self._text[: self._position])}'")
        self._position += 1

    def _value(self, stops: str) -> Any:
        character = self._peek()
        if character and character in "[{":
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise self._error(f"more than {_MAX_DEPTH} nested lists and mappings. Write it flat")
            value = self._list() if character == "[" else self._mapping()
            self._depth -= 1
        elif character in {"'", '"'} and character:
            value = self._quoted(character)
        else:
            word = self._unquoted(stops)
            try:
                return parse_primitive(word)
            except ValueError as error:
                raise self._error(f"{error}. Write a smaller one, or quotation marks around text") from error
        self._peek()  # Skips trailing whitespace.
        return value

    def _unquoted(self, stops: str) -> str:
        start = self._position
        while self._position < len(self._text) and self._text[self._position] not in stops:
            self._position += 1
        word = self._text[start : self._position].strip()
        if not word:
            raise self._error("a value is missing. Quote the text if it contains a comma")
        return word

    def _quoted(self, quote: str) -> str:
        self._position += 1
        characters: list[str] = []
        while self._position < len(self._text):
            character = self._text[self._position]
            self._position += 1
            if character == "\\" and self._text[self._position : self._position + 1] in {quote, "\\"}:
                characters.append(self._text[self._position])
                self._position += 1
            elif character == quote:
                return "".join(characters)
            else:
                characters.append(character)
        raise self._error(f"the quotation mark {quote} is not closed")

    def _list(self) -> list[Any]:
        self._expect("[")
        items: list[Any] = []
        while self._peek() != "]":
            if not self._peek():
                break
            items.append(self._value(",]"))
            if self._peek() == ",":
                self._position += 1
            elif self._peek() != "]":
                break
        if self._peek() != "]":
            key, rest = self._setting.partition("=")[0], ",...]" if self._text.rstrip().endswith(",") else "]"
            example = f"{key}={shorten(format_value(items).removesuffix(']'))}{rest}"
            raise self._error(
                "the list is not closed: expected ']'. A shell splits at spaces: write the list without them, as in "
                f"{example}, or put quotation marks around the setting"
            )
        self._expect("]")
        return items

    def _mapping(self) -> dict[str, Any]:
        self._expect("{")
        items: dict[str, Any] = {}
        while self._peek() != "}":
            key = self._quoted(self._peek()) if self._peek() in {"'", '"'} else self._unquoted(":,}")
            if self._peek() != ":":
                raise self._error(f"expected ':' after '{shorten(key)}'")
            self._position += 1
            items[key] = self._value(",}")
            if self._peek() == ",":
                self._position += 1
            elif self._peek() != "}":
                raise self._error("the mapping is not closed: expected '}'")
        self._expect("}")
        return items
