"""Conditions under which a setting has an effect, declared in its type, and messages about values without one.

rnn_size: Annotated[int, Needs("rnn!=none")] = Field(64, ge=1)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coterie.config import messages
from coterie.config.overrides import parse_primitive

FACTS = {
    "continuous_actions": "without continuous actions",
    "discrete_actions": "without discrete actions",
    "several_agents": "in a team of one agent",
    "external_env": "in an environment of Coterie",
    "q_values": "without Q-learning",
    "gaussian_actions": "without Gaussian actions",
    "hidden_layers": "in a policy whose network is a transformer or retention",
}
"""Facts of a team, its policy or an environment that conditions may name, each with words for its absence."""

_NOTHING = (None, False, 0, (), [], {}, "off", "none", "constant", "auto")
"""Defaults that ask for nothing, so that they need nothing."""


class Needs:
    """Metadata of a setting or section: it has an effect only if one of the conditions holds.

    A condition is `KEY=VALUE|VALUE` or `KEY!=VALUE|VALUE` with values as on the command line. The key is a setting of
    the same model, a dotted key of the team or the run, or one of `FACTS`.
    """

    def __init__(self, *conditions: str):
        self.conditions = tuple(map(_parse, conditions))


@dataclass(frozen=True)
class _Condition:
    text: str
    key: str
    is_equal: bool
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return ((None if value == () else value) in self.values) is self.is_equal


def _parse(text: str) -> _Condition:
    found = re.fullmatch(r"([\w.]+)(!?=)([^=]+)", text)
    assert found is not None, text
    return _Condition(text, found[1], found[2] == "=", tuple(map(parse_primitive, found[3].split("|"))))


CONTINUOUS, DISCRETE, SEVERAL, HIDDEN_LAYERS = (
    Needs(f"{fact}=true") for fact in ("continuous_actions", "discrete_actions", "several_agents", "hidden_layers")
)


@dataclass(frozen=True)
class Section:
    """A part of a configuration.

    Attributes:
        model: Its settings.
        prefix: Start of their dotted keys.
        facts: Those of `FACTS` that are known; others count as True.
        outer: The section around it, whose dotted keys conditions may name; None for the whole configuration.
    """

    model: BaseModel
    prefix: str
    facts: Mapping[str, bool]
    outer: Section | None = None


@dataclass(frozen=True)
class Idle:
    """A setting without effect.

    Attributes:
        key: Its dotted key.
        reason: Settings or facts that leave it without effect, such as `algo.rnn=none`.
        fix: What to change.
        because: Dotted keys of these settings.
        is_default: True if it has its default value.
    """

    key: str
    reason: str
    fix: str
    because: tuple[str, ...]
    is_default: bool


def needs_of(field: FieldInfo) -> list[Needs]:
    """Returns what a setting needs; all of it."""
    return [part for part in field.metadata if isinstance(part, Needs)]


def idle_settings(section: Section, without: Collection[str] = ()) -> Iterator[Idle]:
    """Yields the settings of a section without effect, in order, but for parts that are sections of their own."""
    yield from _idle(section, [], without)


def _idle(section: Section, outer: list[tuple[Needs, Section]], without: Collection[str] = ()) -> Iterator[Idle]:
    for name, field in type(section.model).model_fields.items():
        if name in without:
            continue
        value = getattr(section.model, name)
        needs = [*outer, *((need, section) for need in needs_of(field))]
        key = f"{section.prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _idle(Section(value, f"{key}.", section.facts, section), needs)
            continue
        is_default = not field.is_required() and value == field.get_default(call_default_factory=True)
        unmet = next((found for need, where in needs if (found := _unmet(need, where, key))), None)
        if unmet is not None and not (is_default and value in _NOTHING):
            yield Idle(key, *unmet, is_default)


def _unmet(need: Needs, section: Section, key: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Returns reason, fix and keys of the reason if none of the conditions holds, else None."""
    found = [(condition, *_lookup(condition.key, section)) for condition in need.conditions]
    if any(where == key for _, where, _, _ in found):  # the setting that switches its section on
        return None
    if any(condition.holds(value) for condition, _, value, _ in found):
        return None
    settings = [(condition, where, value, field) for condition, where, value, field in found if field is not None]
    reason = " and ".join(f"{where}={messages.show(value)}" for _, where, value, _ in settings)
    absent = [FACTS[condition.key] for condition, _, _, field in found if field is None]
    fixes = [_fix(condition, where, field) for condition, where, _, field in settings]
    return (
        " ".join([f"with {reason}"] * bool(reason) + absent),
        " or ".join(fix for fix in fixes if fix),
        tuple(where for _, where, _, _ in settings),
    )


def _lookup(key: str, section: Section) -> tuple[str, Any, FieldInfo | None]:
    """Returns the dotted key of a condition's setting, its value and its field; no field for a fact of a team."""
    if key in FACTS:
        return key, section.facts.get(key, True), None
    *sections, name = key.split(".")
    while (sections or [name])[0] not in type(section.model).model_fields:
        assert section.outer is not None, key
        section = section.outer
    model = section.model
    for part in sections:
        model = getattr(model, part)
    return f"{section.prefix}{key}", getattr(model, name), type(model).model_fields[name]


def _fix(condition: _Condition, key: str, field: FieldInfo) -> str:
    """Returns a setting that fulfills a condition; "" if the setting is to be removed."""
    if condition.is_equal:
        values = [value for value in condition.values if value is not None]
        return f"{key}={_any_of(map(messages.show, values))}" if values else ""
    kinds = [kind for kind in messages.alternatives(field.annotation) if get_origin(kind) is Literal]
    values = [value for kind in kinds for value in get_args(kind) if value not in condition.values]
    return f"{key}={_any_of(values)}" if values else key


def _any_of(values: Iterable[str]) -> str:
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def lines(idle: list[Idle]) -> list[str]:
    """Returns a line for each reason, with all settings that have no effect because of it."""
    by_reason: dict[tuple[str, str], list[Idle]] = {}
    for setting in idle:
        by_reason.setdefault((setting.reason, setting.fix), []).append(setting)
    found = []
    for (reason, fix), settings in by_reason.items():
        them = "it" if len(settings) == 1 else "them"
        one_of_two = "Remove one of the two." if settings[0].because else f"Remove {them}."
        advice = f"Set {fix}, or remove {them}." if fix else one_of_two
        found.append(f"{', '.join(setting.key for setting in settings)}: no effect {reason}. {advice}")
    return found
