"""Copies of outside environments whose parameters are drawn for every episode.

An environment takes parameters in one of two ways. It has a method `set_parameters(values)`, which is given all that
vary by name just before a reset; `parameters`, if it has that too, holds the names that it knows. Or its constructor
takes them, as the keys `env.*` say: then the copy is made anew whenever one of its values changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from pydantic import ValidationError

from coterie import messages, registry
from coterie.envs.hosting.instance import Instance, Layout, Place
from coterie.envs.hosting.opening import opened
from coterie.envs.hosting.saved import set_words, words
from coterie.envs.parameters import Parameter, unknown
from coterie.envs.samplers import Constant, Sampler, Value
from coterie.envs.wrappers.wrapper import Wrapper
from coterie.errors import UserError, one_line
from coterie.seeds import seed_of

_NOT_PARAMETERS = frozenset({"wrappers", "episode_limit", "roles", "max_agents", "mortal", "state"})
"""Keys of every environment, which say how it is seen and not what it is like."""
_DEEP = 12  # wrappers that an environment may stand in
_EDGES = (0.0, 0.5, 1 - 2**-20)
"""Noise of the values that are tried before a run."""


@runtime_checkable
class Takes(Protocol):
    """What is told its parameters before an episode begins."""

    def set_parameters(self, values: dict[str, Value]) -> object:
        """From the next reset on these are the values."""
        ...


def taker(instance: Instance) -> Takes | None:
    """What takes parameters within a copy: itself, or the library's environment; None if nothing does."""
    while isinstance(instance, Wrapper):
        instance = instance.inner
    found: Any = instance
    for _ in range(_DEEP):
        if isinstance(found, Takes):
            return found
        inner = (getattr(found, name, None) for name in ("env", "_env", "unwrapped"))
        found = next((env for env in inner if env is not None and env is not found), None)
    return None


@dataclass(frozen=True)
class Kind:
    """How the environment of this name and these keys is made, and what is known of it before any lesson."""

    name: str
    params: Mapping[str, Any]

    @property
    def keys(self) -> tuple[Collection[str], bool]:
        """Parameters of its constructor, and whether it takes others as well."""
        config = registry.environment(self.name).Config
        return set(config.model_fields) - _NOT_PARAMETERS, config.model_config.get("extra") == "allow"

    def parameters(self) -> dict[str, Parameter]:
        """Those that are known by name. Makes a copy, and closes it again."""
        kind = registry.environment(self.name)
        if kind.any_parameters:
            return {}
        _, copy = self.make({})
        try:
            known: Any = getattr(taker(copy), "parameters", None)
        finally:
            copy.close()
        told = dict(known) if isinstance(known, Mapping) else dict.fromkeys(known) if _listed(known) else {}
        fields = kind.Config.model_fields
        made = {name: self.params.get(name, fields[name].default) for name in self.keys[0] - told.keys()}
        return {
            name: Parameter(_known(value), -math.inf, math.inf, how)
            for values, how in ((told, "told before an episode"), (made, "of its constructor: copies are made anew"))
            for name, value in sorted(values.items())
        }

    def make(self, values: Mapping[str, Value]) -> tuple[Layout, Instance]:
        """A copy with these values for its constructor. UserError for those that it refuses."""
        model = registry.environment(self.name).Config
        try:
            config = model.model_validate(dict(self.params) | dict(values))
        except ValidationError as error:
            said = messages.mistakes(error, messages.leaf_fields(model))[0][1]
            raise UserError(f"{self.name} takes no such parameter: {said}") from error
        layout, make = opened(self.name, config.model_dump())
        return layout, make()

    def check(self, layout: Layout, samplers: Mapping[str, Sampler]) -> None:
        """UserError for parameters that the environment has not, and values with which it cannot be made or shows
        something else. Makes a few copies, and closes them again.
        """
        if not samplers:
            return
        if registry.environment(self.name).any_parameters:  # it is not asked, and starting it for nothing may be long
            for name, sampler in samplers.items():
                if sampler.mean() is None:
                    raise UserError(f"the parameter '{name}' of {self.name} is a word: it takes numbers")
            return
        _, first = self.make({})
        try:
            told, made = self.divided(first, samplers)
            if told:
                self.tell(first, {name: samplers[name].pick(0.5) for name in told})
        finally:
            first.close()
        fixed = all(isinstance(samplers[name], Constant) for name in made)
        for edge in _EDGES[: 1 if fixed else None] if made else ():
            values = {name: samplers[name].pick(edge) for name in made}
            shown, copy = self._tried(values)
            copy.close()
            self.alike(layout, shown, values)

    def _tried(self, values: Mapping[str, Value]) -> tuple[Layout, Instance]:
        try:
            return self.make(values)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.name} cannot be made with {_said(values)}: {one_line(error)}") from error

    def alike(self, first: Layout, now: Layout, values: Mapping[str, Value]) -> None:
        """UserError where values of the constructor change who acts, what agents see or can do."""
        if first.spec.roles != now.spec.roles or first.spec.state_sizes != now.spec.state_sizes:
            raise UserError(
                f"{self.name} with {_said(values)} has other agents or spaces than without: no policy can act in both; "
                "choose values that leave them as they are"
            )

    def divided(self, instance: Instance, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Names that the environment is told, and those that its constructor is given. UserError for others."""
        takes = taker(instance)
        known = None if takes is None else getattr(takes, "parameters", None)
        listed = set(known) if known is not None and _listed(known) else None
        keys, free = self.keys
        told = [name for name in sorted(names) if takes is not None and (listed is None or name in listed)]
        made = [name for name in sorted(names) if name not in told]
        for name in made:
            if name not in keys and not free:
                raise unknown(self.name, name, {*(listed or ()), *keys})
        return told, made

    def tell(self, instance: Instance, values: dict[str, Value]) -> None:
        """Tells the environment its parameters. UserError for what it refuses."""
        takes = taker(instance)
        assert takes is not None
        try:
            takes.set_parameters(values)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.name} refuses the parameters {_said(values)}: {one_line(error)}") from error


def _listed(known: Any) -> bool:
    return isinstance(known, Collection) and not isinstance(known, str)


def _known(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _said(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


@final
class Varied(Instance):
    """A copy whose episodes each draw parameters.

    place: where the copy is attached; layout: what all copies show; seed: of the draws until `reset` is given one.
    """

    def __init__(self, inner: Instance, kind: Kind, layout: Layout, place: Place, seed: int):
        self.inner, self._kind, self._layout, self._place = inner, kind, layout, place
        self._samplers: dict[str, Sampler] = {}
        self._told: list[str] = []
        self._values: dict[str, Value] = {}  # of the running episode
        self._random = np.random.Generator(np.random.PCG64(seed))

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        """Episodes that begin from now on draw these, and those of earlier calls."""
        self._samplers = dict(sorted((self._samplers | dict(samplers)).items()))
        self._told, _ = self._kind.divided(self.inner, self._samplers)

    def attach(self, place: Place) -> None:
        self._place = place
        self.inner.attach(place)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._random = np.random.Generator(np.random.PCG64(seed_of(seed, "parameters")))
        drawn = {name: sampler.pick(float(self._random.random())) for name, sampler in self._samplers.items()}
        if self._given(drawn) and seed is None:
            seed = int(self._random.integers(2**31))  # who was just made would take one from the machine
        self.inner.reset(seed)

    def _given(self, values: dict[str, Value]) -> bool:
        """Gives the environment these values; whether it was made anew for them."""
        before, self._values = self._values, values
        own = {name: value for name, value in values.items() if name not in self._told}
        anew = any(name not in before or before[name] != value for name, value in own.items())
        if anew:
            self.inner.close()
            shown, self.inner = self._kind.make(own)
            self._kind.alike(self._layout, shown, own)
            self.inner.attach(self._place)
        if self._told and (anew or before != values):
            self._kind.tell(self.inner, {name: values[name] for name in self._told})
        return anew

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)

    def render(self) -> np.ndarray | None:
        return self.inner.render()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "values": dict(self._values), "random": words(self._random)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given(dict(state["values"]))
        self.inner.load_state_dict(state["inner"])
        set_words(self._random, state["random"])

    def close(self) -> None:
        self.inner.close()
