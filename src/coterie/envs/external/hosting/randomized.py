"""Environment instances whose parameters are sampled for every episode.

An environment takes parameters in one of two ways:

- It has a method `set_parameters(values)`, which is called with all sampled values by name just before a reset. If it
  has an attribute `parameters` as well, that lists the names it knows, or maps them to their defaults.
- Its constructor takes them, as the settings `env.*`. The instance is then recreated whenever one of them changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from pydantic import ValidationError

from coterie.config import messages
from coterie.config.samplers import Constant, Sampler, Value
from coterie.core.errors import UserError, one_line
from coterie.core.seeds import seed_of
from coterie.envs import registry
from coterie.envs.contract.closing import close_reported
from coterie.envs.contract.parameters import Parameter, unknown_parameter
from coterie.envs.external.hosting.factory import instance_factory, making, start_limit
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout, Wrapper
from coterie.envs.external.hosting.numpy_state import rng_state, set_rng_state

_NOT_PARAMETERS = frozenset(
    {"wrappers", "episode_limit", "roles", "teams", "max_agents", "agent_order", "agents_can_die", "waiting", "state"}
)
"""Settings that every environment has. They determine how it is presented, not its dynamics."""
_MAX_WRAPPERS = 12
"""Wrappers of the library that are searched for `set_parameters`."""
_TESTED_QUANTILES = (0.0, 0.5, 1 - 2**-20)
"""Quantiles of every sampler that are tried before a run."""


@runtime_checkable
class AcceptsParameters(Protocol):
    """An environment whose parameters can be set before an episode."""

    def set_parameters(self, values: dict[str, Value]) -> object:
        """Sets the parameters from the next reset on."""
        ...


def parameter_receiver(instance: Instance) -> AcceptsParameters | None:
    """Returns the object within an instance that has `set_parameters`, None if there is none."""
    while isinstance(instance, Wrapper):
        instance = instance.inner
    found: Any = instance
    for _ in range(_MAX_WRAPPERS):
        if isinstance(found, AcceptsParameters):
            return found
        inner = (getattr(found, name, None) for name in ("env", "_env", "unwrapped"))
        found = next((env for env in inner if env is not None and env is not found), None)
    return None


@dataclass(frozen=True)
class EnvFactory:
    """Makes instances of an environment with other parameters.

    Attributes:
        name: Name of the environment.
        params: Its settings `env.*`, which sampled parameters override.
    """

    name: str
    params: Mapping[str, Any]

    @property
    def constructor_parameters(self) -> tuple[Collection[str], bool]:
        """Names of the constructor's parameters, and True if it takes others as well."""
        config = registry.environment(self.name).Config
        return set(config.model_fields) - _NOT_PARAMETERS, config.model_config.get("extra") == "allow"

    def parameters(self) -> dict[str, Parameter]:
        """Returns the parameters that are known by name. Makes an instance and closes it."""
        kind = registry.environment(self.name)
        if kind.any_parameters:
            return {}
        with making(self.name):
            _, instance = self.make({})
        try:
            listed: Any = getattr(parameter_receiver(instance), "parameters", None)
        finally:
            close_reported(self.name, instance.close)
        settable = (
            dict(listed) if isinstance(listed, Mapping) else dict.fromkeys(listed) if _is_collection(listed) else {}
        )
        fields = kind.Config.model_fields
        constructor = {
            name: self.params.get(name, fields[name].default)
            for name in self.constructor_parameters[0] - settable.keys()
        }
        return {
            name: Parameter(_as_float(value), -math.inf, math.inf, meaning)
            for values, meaning in (
                (settable, "set before each episode"),
                (constructor, "constructor argument: the environment is recreated"),
            )
            for name, value in sorted(values.items())
        }

    def make(self, values: Mapping[str, Value]) -> tuple[Layout, Instance]:
        """Returns an instance with these constructor arguments, and its layout.

        Raises:
            UserError: For values that the environment refuses.
        """
        model = registry.environment(self.name).Config
        try:
            config = model.model_validate(dict(self.params) | dict(values))
        except ValidationError as error:
            mistake = messages.mistakes(error, messages.leaf_fields(model))[0][1]
            raise UserError(f"{self.name} has no such parameter: {mistake}") from error
        layout, make = instance_factory(self.name, config.model_dump())
        return layout, make()

    def check(self, layout: Layout, samplers: Mapping[str, Sampler]) -> None:
        """Checks samplers by making a few instances, which are closed again.

        Raises:
            UserError: For parameters that the environment does not have, and values with which it cannot be made or
                has other agents or spaces.
        """
        if not samplers:
            return
        if registry.environment(self.name).any_parameters:  # it does not list them, and starting it may take long
            for name, sampler in samplers.items():
                if sampler.mean() is None:
                    raise UserError(f"parameter '{name}' of {self.name} is text. Give a number.")
            return
        with making(self.name):
            _, first = self.make({})
        try:
            settable, constructor = self.split_parameters(first, samplers)
            if settable:
                self.set_parameters(first, {name: samplers[name].draw_one(0.5) for name in settable})
        finally:
            close_reported(self.name, first.close)
        constant = all(isinstance(samplers[name], Constant) for name in constructor)
        for quantile in _TESTED_QUANTILES[: 1 if constant else None] if constructor else ():
            values = {name: samplers[name].draw_one(quantile) for name in constructor}
            new_layout, instance = self._make_checked(values)
            close_reported(self.name, instance.close)
            self.check_same_spaces(layout, new_layout, values)

    def _make_checked(self, values: Mapping[str, Value]) -> tuple[Layout, Instance]:
        try:
            with start_limit(self.name):
                return self.make(values)
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise UserError(f"{self.name} cannot be made with {_as_text(values)}: {one_line(error)}") from error

    def check_same_spaces(self, layout: Layout, new_layout: Layout, values: Mapping[str, Value]) -> None:
        """Checks that constructor arguments do not change agents, observations or actions.

        Raises:
            UserError: If they do.
        """
        one, other = layout.spec, new_layout.spec
        if one.roles != other.roles or one.state_sizes != other.state_sizes:
            raise UserError(
                f"{self.name} with {_as_text(values)} has other agents or spaces than without: no policy can act in "
                "both. Choose values that do not change them."
            )

    def split_parameters(self, instance: Instance, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Returns the names to pass to `set_parameters`, and those to pass to the constructor.

        Raises:
            UserError: For names that neither takes.
        """
        receiver = parameter_receiver(instance)
        listed = None if receiver is None else getattr(receiver, "parameters", None)
        known = set(listed) if listed is not None and _is_collection(listed) else None
        constructor_names, accepts_any = self.constructor_parameters
        settable = [name for name in sorted(names) if receiver is not None and (known is None or name in known)]
        constructor = [name for name in sorted(names) if name not in settable]
        for name in constructor:
            if name not in constructor_names and not accepts_any:
                raise unknown_parameter(self.name, name, {*(known or ()), *constructor_names})
        return settable, constructor

    def set_parameters(self, instance: Instance, values: dict[str, Value]) -> None:
        """Calls `set_parameters` of the environment.

        Raises:
            UserError: If it raises anything.
        """
        receiver = parameter_receiver(instance)
        assert receiver is not None
        try:
            receiver.set_parameters(values)
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise UserError(f"{self.name} refuses the parameters {_as_text(values)}: {one_line(error)}") from error


def _is_collection(listed: Any) -> bool:
    return isinstance(listed, Collection) and not isinstance(listed, str)


def _as_float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _as_text(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


@final
class RandomizedInstance(Wrapper):
    """An instance whose parameters are sampled at every reset.

    Args:
        inner: The instance.
        factory: Recreates it with other constructor arguments.
        layout: Layout of all instances.
        buffers: Buffers to which `inner` is attached.
        seed: Seed of the sampled values until `reset` is given one.
    """

    def __init__(self, inner: Instance, factory: EnvFactory, *, layout: Layout, buffers: EnvBuffers, seed: int):
        super().__init__(inner)
        self._factory, self._layout, self._buffers = factory, layout, buffers
        self._samplers: dict[str, Sampler] = {}
        self._settable: list[str] = []
        self._values: dict[str, Value] = {}  # of the current episode
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        """Samples these parameters, besides those of earlier calls, for every episode that starts from now on."""
        self._samplers = dict(sorted((self._samplers | dict(samplers)).items()))
        self._settable, _ = self._factory.split_parameters(self.inner, self._samplers)

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self.inner.attach(buffers)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed_of(seed, "parameters")))
        values = {name: sampler.draw_one(float(self._generator.random())) for name, sampler in self._samplers.items()}
        if self._apply(values) and seed is None:
            seed = int(self._generator.integers(2**31))  # a new instance would be seeded by the operating system
        self.inner.reset(seed)

    def _apply(self, values: dict[str, Value]) -> bool:
        """Sets the parameters of the environment; True if it was recreated for them."""
        before, self._values = self._values, values
        arguments = {name: value for name, value in values.items() if name not in self._settable}
        recreate = any(name not in before or before[name] != value for name, value in arguments.items())
        if recreate:
            close_reported(self._factory.name, self.inner.close)
            layout, self.inner = self._factory.make(arguments)
            self._factory.check_same_spaces(self._layout, layout, arguments)
            self.inner.attach(self._buffers)
        if self._settable and (recreate or before != values):
            self._factory.set_parameters(self.inner, {name: values[name] for name in self._settable})
        return recreate

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "values": dict(self._values),
            "generator": rng_state(self._generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._apply(dict(state["values"]))
        super().load_state_dict(state)
        set_rng_state(self._generator, state["generator"])
