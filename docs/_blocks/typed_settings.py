"""Writes `coterie/config/typed_settings.py`: the settings as types, with which editors complete `coterie.train`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from coterie.algos import registry
from coterie.algos.base_config import CriticConfig, LearnerConfig
from coterie.algos.ppo import PPOConfig
from coterie.config import sources
from coterie.config.samplers import Sampler
from coterie.config.schema import RunConfig, TeamConfig, parse_count
from coterie.envs import registry as env_registry

FILE = Path(__file__).resolve().parents[2] / "src" / "coterie" / "config" / "typed_settings.py"

_HEAD = '''"""Settings as types: editors complete the arguments of `coterie.train`, and type checkers check them.

`docs/generate.py` writes this file from the configuration models, which check the values when a run starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

Count = int | float | str
"""An integer that may be written as 1e6, or as a text: "20M", "500k"."""

Code = Callable[..., Any]
"""A function or class: one that makes environments, an algorithm, a network, or a mixer."""
'''

_TAIL = '''
class OwnAlgorithmSettings(TypedDict, extra_items=Any):
    """Settings of an algorithm of your own."""

    name: Code
    """Class of the algorithm."""


class OtherEnvSettings(TypedDict, extra_items=Any):
    """Settings of an environment of another library, or of your own."""

    name: str | Code
    """Name, or the function or class that makes the environment."""
'''

_CODE = {"network", "critic_network", "mixer"}

Keys = dict[str, tuple[str, str]]
"""Type and docstring of each key."""

_PARTS: dict[str, tuple[type[LearnerConfig], str, str]] = {
    "NetworkKeys": (LearnerConfig, "network network_edges network_radius", "Settings of the network that acts."),
    "SharingKeys": (LearnerConfig, "rnn share_params", "Settings of recurrent layers and of shared parameters."),
    "CriticNetworkKeys": (
        CriticConfig,
        "critic_hidden_sizes critic_agent_id critic_network",
        "Settings of the network of a critic.",
    ),
    "ClipKeys": (PPOConfig, "critic_lr clip_eps target_kl", "Settings of updates that clip the policy ratio."),
}
"""Settings of a model that some of its subclasses lack or narrow: each a TypedDict that the others inherit."""


class _Writer:
    """Collects the source of TypedDicts, each after those that it refers to.

    Each is also a Python class here, whose attributes are the types and docstrings of its keys, so that Python itself
    finds what a TypedDict inherits.
    """

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self.sections: dict[type[BaseModel], type] = {}

    def section(self, model: type[BaseModel]) -> type:
        """Adds the TypedDict of a model, which inherits those of the model's bases, and returns it."""
        if model not in self.sections:
            bases = [self.section(base) for base in model.__bases__ if getattr(base, "model_fields", None)]
            name = f"{model.__name__.removesuffix('Config')}Settings"
            self.sections[model] = self.add(name, model.__doc__ or "", self.keys(model.model_fields), bases)
        return self.sections[model]

    def keys(self, fields: Mapping[str, FieldInfo]) -> Keys:
        """Returns types and docstrings of the fields of a model."""
        return {key: (self.of_field(key, field), field.description or "") for key, field in fields.items()}

    def merged(self, models: Iterable[type[BaseModel]]) -> Keys:
        """Returns types and docstrings of the fields of several models; a type has the alternatives of all."""
        texts: dict[str, str] = {}
        kinds: dict[str, dict[str, None]] = {}
        for model in models:
            for key, (kind, text) in self.keys(model.model_fields).items():
                texts.setdefault(key, text)
                kinds.setdefault(key, {})[kind] = None
        parts = {key: [part for kind in own for part in kind.split(" | ")] for key, own in kinds.items()}
        return {
            key: (" | ".join(sorted(dict.fromkeys(own), key=lambda part: part == "None")), texts[key])
            for key, own in parts.items()
        }

    def add(self, name: str, doc: str, keys: Keys, bases: Iterable[type] = ()) -> type:
        """Adds a TypedDict, with those of the keys that its bases lack or document differently, and returns it."""
        given = list(dict.fromkeys(bases))
        direct = [base for base in given if not any(issubclass(other, base) for other in given if other is not base)]
        found = type(name, tuple(direct), {})
        own = _missing(keys, [found])
        lines = [f"class {name}({', '.join(base.__name__ for base in direct) or 'TypedDict'}, total=False):"]
        lines += [_docstring(doc), ""]
        for key, (annotation, text) in own.items():
            setattr(found, key, (annotation, text))
            lines += [f"    {key}: {annotation}", *([_docstring(text)] if text else [])]
        self.classes[name] = "\n".join(lines) + "\n"
        return found

    def of_field(self, key: str, field: FieldInfo) -> str:
        """Returns the type of a field as it may be given."""
        if any(isinstance(part, BeforeValidator) and part.func is parse_count for part in field.metadata):
            return "Count"
        found = self.annotation(field.annotation)
        return found.replace("str", "str | Code", 1) if key in _CODE else found

    def annotation(self, given: Any) -> str:
        """Returns an annotation of a model as source."""
        origin, arguments = typing.get_origin(given), typing.get_args(given)
        if origin is typing.Annotated:
            if any(isinstance(part, BeforeValidator) and part.func is parse_count for part in arguments[1:]):
                return "Count"
            return self.annotation(arguments[0])
        if origin in (typing.Union, types.UnionType):
            return " | ".join(dict.fromkeys(self.annotation(part) for part in arguments))
        if origin is typing.Literal:
            return _literal(arguments)
        if origin is tuple:
            return f"Sequence[{self.annotation(arguments[0])}]"
        if origin is dict:
            return f"Mapping[str, {self.annotation(arguments[1])}]"
        if given is type(None):
            return "None"
        if isinstance(given, type) and issubclass(given, Sampler):
            return "float | str | Mapping[str, Any]"  # as `coterie.config.samplers` reads them
        if isinstance(given, type) and issubclass(given, BaseModel):
            return self.section(given).__name__
        if isinstance(given, type) and issubclass(given, Path):
            return "str | os.PathLike[str]"
        return given.__name__ if given in (int, float, str, bool) else "Any"


def _missing(keys: Keys, classes: Iterable[type]) -> Keys:
    """Returns the keys that classes lack, or have with another type or docstring."""
    return {key: kind for key, kind in keys.items() if all(getattr(own, key, None) != kind for own in classes)}


def _alternatives(kind: tuple[str, str]) -> int:
    """Returns the number of alternatives of a type."""
    return 1 + kind[0].count(" | ") + kind[0].count(", ")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _docstring(text: str) -> str:
    """Returns a docstring of the members of a class."""
    lines = textwrap.wrap(" ".join(text.replace("\\", "").split()), 109, break_on_hyphens=False)
    end = '"""' if len(lines) == 1 else '\n    """'
    return '    """' + "\n    ".join(lines) + end


class _Learners:
    """Adds the settings of the algorithms that learn: what several of them share once, as their models do.

    A TypedDict may not change the type of a key that it inherits. So one that others inherit has the keys that all of
    them have, with their widest type, and the TypedDict of an algorithm has the rest, and the algorithm's name.
    """

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer
        models = dict.fromkeys(registry.algorithm(name).Config for name in registry.ALGOS)
        self.fields = {model: writer.keys(model.model_fields) for model in models if issubclass(model, LearnerConfig)}
        self.all: dict[str, tuple[str, str]] = {}
        for keys in self.fields.values():
            for key, kind in keys.items():
                self.all[key] = max(self.all.get(key, kind), kind, key=_alternatives)
        self.parts: list[tuple[type, Keys]] = []
        for name, (model, part, doc) in _PARTS.items():
            own = {key: kind for key, kind in writer.keys(model.model_fields).items() if key in part.split()}
            self.parts.append((writer.add(name, doc, own), own))
        self.classes: dict[type[LearnerConfig], type] = {}

    def parts_of(self, keys: Keys) -> list[type]:
        """Returns the TypedDicts all of whose keys are among these."""
        return [part for part, own in self.parts if own.items() <= keys.items()]

    def shared(self, model: type[LearnerConfig]) -> type:
        """Adds the TypedDict of the keys that a model and its subclasses share, and returns it, or its only base."""
        if model not in self.classes:
            below = [keys for learner, keys in self.fields.items() if issubclass(learner, model)]
            keys = {
                key: kind
                for key, kind in self.writer.keys(model.model_fields).items()
                if kind[0] == self.all[key][0] and all(key in own and own[key][0] == kind[0] for own in below)
            }
            bases = [self.shared(base) for base in model.__bases__ if issubclass(base, LearnerConfig)]
            parts = self.parts_of(keys)
            if len(bases) == 1 and not _missing(keys, [*bases, *parts]):
                return self.classes.setdefault(model, bases[0])
            name, doc = f"{model.__name__.removesuffix('Config')}Keys", (model.__doc__ or "").partition("\n\n")[0]
            self.classes[model] = self.writer.add(name, doc, keys, [*bases, *parts])
        return self.classes[model]


def _algorithms(writer: _Writer, learners: _Learners) -> str:
    """Adds the settings of all algorithms, one TypedDict per configuration, and returns their union."""
    names: dict[type[BaseModel], list[str]] = {}
    for name in sources.presets("algo"):
        names.setdefault(registry.algorithm(registry.base_name(name)).Config, []).append(name)
    found = []
    for model, own in names.items():
        keys = writer.keys(model.model_fields)
        bases = [learners.shared(model), *learners.parts_of(keys)] if issubclass(model, LearnerConfig) else []
        name = f"{model.__name__.removesuffix('Config')}Settings"
        writer.add(name, f"Settings of {', '.join(own)}.", {"name": (_literal(own), "Algorithm."), **keys}, bases)
        found.append(name)
    return " | ".join([*found, "OwnAlgorithmSettings"])


def _worlds(writer: _Writer) -> tuple[str, str]:
    """Adds the settings of all families of built-in worlds; returns their names, and the union of the settings."""
    families: dict[str, list[str]] = {}
    for name in env_registry.environments():
        if not env_registry.is_external(name):
            families.setdefault(name.partition("/")[0], []).append(name)
    names = {family.capitalize(): own for family, own in families.items()}
    for family, own in names.items():
        merged = writer.merged(env_registry.environment(name).Config for name in own)
        keys = {"name": (f"{family}Name", "Environment.")} | merged
        writer.add(f"{family}Settings", f"Settings of the environments {family.lower()}/*.", keys)
    literals = [_packed(f"{family}Name", own) for family, own in names.items()]
    every = f"# fmt: on\n\nEnvName = Literal[{', '.join(f'{family}Name' for family in names)}]"
    union = " | ".join([*(f"{family}Settings" for family in names), "OtherEnvSettings"])
    return "\n\n".join([*literals, every]), union


def _train(writer: _Writer, learners: _Learners) -> None:
    """Adds the arguments of `coterie.train`: settings of a run, and short names of those of its algorithm."""
    fields = {key: field for key, field in RunConfig.model_fields.items() if key not in ("algo", "env", "teams")}
    teams = ("Mapping[str, TeamSettings]", RunConfig.model_fields["teams"].description or "")
    keys = {"teams": teams} | writer.keys(fields)
    keys |= {key: kind for key, kind in learners.all.items() if key not in keys}  # `lr` for `algo.lr`
    doc = "Settings of a run, and of its algorithm, besides `algo` and `env`, which are arguments of `coterie.train`."
    writer.add("TrainSettings", doc, keys, learners.classes.values())


def _team(writer: _Writer) -> None:
    """Adds the settings of a team."""
    keys = {
        "algo": ("str | Code | AlgoSettings", TeamConfig.model_fields["algo"].description or ""),
        "network": ("str | Code", "Network of the actor."),
        "critic_network": ("str | Code", "Network of the critic."),
        "mixer": ("str | Code", "Mixer of Q-values."),
        "run": ("str | os.PathLike[str]", "Run of a frozen team."),
    }
    fields = {key: field for key, field in TeamConfig.model_fields.items() if key not in keys}
    writer.add("TeamSettings", TeamConfig.__doc__ or "", keys | writer.keys(fields))


def source() -> str:
    """Returns the content of the file."""
    writer = _Writer()
    learners = _Learners(writer)
    algorithms = _algorithms(writer, learners)
    names, worlds = _worlds(writer)
    _team(writer)
    _train(writer, learners)
    last = [writer.classes.pop(name) for name in ("TeamSettings", "TrainSettings")]
    algo_names = _packed("AlgoName", sources.presets("algo"))
    unions = f"AlgoSettings = {algorithms}\n\nEnvSettings = {worlds}\n"
    parts = [_HEAD, f"# fmt: off\n{algo_names}\n\n{names}\n", *writer.classes.values(), _TAIL, unions, *last]
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    done = subprocess.run(command, input="\n\n".join(parts), capture_output=True, text=True, check=True)
    return done.stdout


def _literal(names: Iterable[Any]) -> str:
    return f"Literal[{', '.join(map(_quoted, names))}]"


def _packed(name: str, values: Iterable[str]) -> str:
    """Returns the source of a Literal with many values, as many per line as fit."""
    lines = textwrap.wrap(f"{', '.join(map(_quoted, values))},", 115, break_on_hyphens=False)
    return f"{name} = Literal[\n" + textwrap.indent("\n".join(lines), "    ") + "\n]"
