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


class _Writer:
    """Collects the source of TypedDicts, each after those that it refers to."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}

    def section(self, model: type[BaseModel]) -> str:
        """Adds the TypedDict of a model and returns its name."""
        name = f"{model.__name__.removesuffix('Config')}Settings"
        if name not in self.classes:
            self.add(name, model.__doc__ or "", model.model_fields, {})
        return name

    def keys(self, fields: Mapping[str, FieldInfo]) -> dict[str, tuple[str, str]]:
        """Returns types and docstrings of the fields of a model."""
        return {key: (self.of_field(key, field), field.description or "") for key, field in fields.items()}

    def merged(self, models: Iterable[type[BaseModel]]) -> dict[str, tuple[str, str]]:
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

    def add(
        self,
        name: str,
        doc: str,
        fields: Mapping[str, FieldInfo],
        more: Mapping[str, tuple[str, str]],
        base: str = "TypedDict",
    ) -> None:
        """Adds a TypedDict.

        Args:
            name: Its name.
            doc: Its docstring.
            fields: Fields of a model.
            more: Types and docstrings of further keys, or of fields that have another type here.
            base: TypedDict with more keys.
        """
        rest = {key: field for key, field in fields.items() if key not in more}
        keys = {**more, **self.keys(rest)}
        lines = [f"class {name}({base}, total=False):", _docstring(doc), ""]
        for key, (annotation, text) in keys.items():
            lines += [f"    {key}: {annotation}", *([_docstring(text)] if text else [])]
        self.classes[name] = "\n".join(lines) + "\n"

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
            return self.section(given)
        if isinstance(given, type) and issubclass(given, Path):
            return "str | os.PathLike[str]"
        return given.__name__ if given in (int, float, str, bool) else "Any"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _docstring(text: str) -> str:
    """Returns a docstring of the members of a class."""
    lines = textwrap.wrap(" ".join(text.replace("\\", "").split()), 109, break_on_hyphens=False)
    end = '"""' if len(lines) == 1 else '\n    """'
    return '    """' + "\n    ".join(lines) + end


def _algorithms(writer: _Writer) -> str:
    """Adds the settings of all algorithms, one TypedDict per configuration, and returns their union."""
    names: dict[type[BaseModel], list[str]] = {}
    for name in sources.presets("algo"):
        names.setdefault(registry.algorithm(registry.base_name(name)).Config, []).append(name)
    learners = [writer.keys(model.model_fields) for model in names if "lr" in model.model_fields]
    shared = {key: kind for key, kind in learners[0].items() if all(own.get(key) == kind for own in learners)}
    writer.add("LearnerSettings", "Settings of all algorithms that learn.", {}, shared)
    found = []
    for model, own in names.items():
        name, fields = f"{model.__name__.removesuffix('Config')}Settings", model.model_fields
        base = "LearnerSettings" if "lr" in fields else "TypedDict"
        rest = {key: field for key, field in fields.items() if base == "TypedDict" or key not in shared}
        writer.add(name, f"Settings of {', '.join(own)}.", rest, {"name": (_literal(own), "Algorithm.")}, base)
        found.append(name)
    return " | ".join([*found, "OwnAlgorithmSettings"])


def _worlds(writer: _Writer) -> str:
    """Adds the settings of all families of built-in worlds and returns their union."""
    families: dict[str, list[str]] = {}
    for name in env_registry.environments():
        if not env_registry.is_external(name):
            families.setdefault(name.partition("/")[0], []).append(name)
    found = []
    for family, names in families.items():
        merged = writer.merged(env_registry.environment(name).Config for name in names)
        literal = _literal(names)
        name = f"{family.capitalize()}Settings"
        writer.add(name, f"Settings of the environments {family}/*.", {}, {"name": (literal, "Environment.")} | merged)
        found.append(name)
    return " | ".join([*found, "OtherEnvSettings"])


def source() -> str:
    """Returns the content of the file."""
    writer = _Writer()
    algorithms, worlds = _algorithms(writer), _worlds(writer)
    names = _literal(sources.presets("algo"))
    envs = _literal([name for name in env_registry.environments() if not env_registry.is_external(name)])
    code = {
        "network": ("str | Code", "Network of the actor."),
        "critic_network": ("str | Code", "Network of the critic."),
        "mixer": ("str | Code", "Mixer of Q-values."),
    }
    own = {"algo": ("str | Code | AlgoSettings", TeamConfig.model_fields["algo"].description or "")} | code
    own["run"] = ("str | os.PathLike[str]", "Run of a frozen team.")
    writer.add("TeamSettings", TeamConfig.__doc__ or "", TeamConfig.model_fields, own)
    teams = ("Mapping[str, TeamSettings]", RunConfig.model_fields["teams"].description or "")
    fields = {key: field for key, field in RunConfig.model_fields.items() if key not in ("algo", "env")}
    order = {
        key: (writer.of_field(key, field), field.description or "") for key, field in fields.items() if key != "teams"
    }
    learners = (registry.algorithm(name).Config for name in registry.ALGOS)
    short = writer.merged(model for model in learners if "lr" in model.model_fields)  # `lr` for `algo.lr`
    doc = "Settings of a run, and of its algorithm, besides `algo` and `env`, which are arguments of `coterie.train`."
    keys = {"teams": teams} | order
    keys |= {key: kind for key, kind in short.items() if key not in keys}
    writer.add("TrainSettings", doc, {}, keys | code)
    last = writer.classes.pop("TrainSettings"), writer.classes.pop("TeamSettings")
    parts = [
        _HEAD,
        *writer.classes.values(),
        _TAIL,
        f"AlgoName = {names}\n\nEnvName = {envs}\n\nAlgoSettings = {algorithms}\n\nEnvSettings = {worlds}\n",
        last[1],
        last[0],
    ]
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    done = subprocess.run(command, input="\n\n".join(parts), capture_output=True, text=True, check=True)
    return done.stdout


def _literal(names: Iterable[Any]) -> str:
    return f"Literal[{', '.join(map(_quoted, names))}]"
