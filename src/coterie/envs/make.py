"""Environments by name: built-in worlds, those of outside libraries, and a user's own `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from coterie import messages, registry
from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.batched import BatchAdapter
from coterie.envs.hosting.halves import Halves
from coterie.envs.hosting.hosted import Alone, Host, HostedEnv
from coterie.envs.hosting.opening import opened
from coterie.envs.hosting.varied import Kind
from coterie.envs.vector import VectorEnv
from coterie.envs.world import World, WorldEnv
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.types import EnvSpec


def make(
    name: str,
    params: Mapping[str, Any] | BaseModel | None = None,
    copies: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    with_state: bool = False,
    workers: WorkersConfig | None = None,
) -> VectorEnv:
    """`copies` copies of the named environment.

    params: the environment's own keys, as a dict or as the environment's typed configuration; with_state: whether rows
    show the state that critics may read (a user's own batch of copies decides itself); workers: the processes that
    step copies one by one, by default this one; batches refuse them. A user's own environment is
    `package.module:factory`, called as `factory(copies=, seed=, device=, **params)` if it takes `copies`, else as
    `factory(**params)` once a copy, for an environment of PettingZoo's or gymnasium's interface. UserError for an
    unknown name, unknown or wrong params, and a factory that returns something else.
    """
    if copies < 1:
        raise UserError(f"copies={copies}: expected at least 1")
    if registry.is_batch_factory(name):
        _refuse(workers, name)
        return _from_factory(name, params, copies, seed, device)
    kind = registry.environment(name)
    config = _typed(name, kind.Config, params)
    if isinstance(kind, Adapter):
        if not with_state and getattr(config, "state", False) is None:  # what nobody reads need not be computed
            config = config.model_copy(update={"state": False})
        return _hosted(name, config, copies, seed, device, workers or WorkersConfig())
    _refuse(workers, name)
    if isinstance(kind, BatchAdapter):
        return kind.batch(config, copies, seed, torch.device(device))
    return WorldEnv(_world(name, kind, config, with_state), copies, seed, device)


def _refuse(workers: WorkersConfig | None, name: str) -> None:
    """UserError where workers are asked for that would have nothing to do."""
    if workers is not None and workers.count:
        raise UserError(
            f"workers.count={workers.count}: {name} steps all its copies as one batch, which workers cannot divide: "
            "leave workers.count out"
        )


def _hosted(
    name: str, config: BaseModel, copies: int, seed: int, device: torch.device | str, workers: WorkersConfig
) -> VectorEnv:
    """An outside library's environment, in halves if workers are to step one while the other is acted on."""
    if not workers.overlap or copies < 2:
        return HostedEnv(_host(name, config, copies, 0, workers), seed, device)
    half = -(-copies // 2)
    first = HostedEnv(_host(name, config, half, 0, workers), seed, device)
    try:
        return Halves(first, HostedEnv(_host(name, config, copies - half, half, workers), seed, device))
    except BaseException:
        first.close()
        raise


def _host(name: str, config: BaseModel, copies: int, first: int, workers: WorkersConfig) -> Host:
    """Who steps copies of an outside library's environment; first: the number of the first of them."""
    params = config.model_dump()
    if not workers.count:
        layout, instance = opened(name, params)
        return Alone(instance, layout, copies, first, Kind(name, params))
    if workers.kind == "ray":
        from coterie.envs.workers.cluster import on_ray

        return on_ray(name, params, copies, workers, first)
    from coterie.envs.workers.processes import Processes

    return Processes(name, params, copies, workers.count, workers.timeout, workers.restarts, first=first)


def spec_of(name: str, params: Mapping[str, Any] | BaseModel | None = None) -> EnvSpec:
    """The spec of any environment but those that a user's own factory makes in batches. UserError as in `make`."""
    kind = registry.environment(name)
    config = _typed(name, kind.Config, params)
    if isinstance(kind, Adapter):
        return opened(name, config.model_dump())[0].spec
    if isinstance(kind, BatchAdapter):
        return kind.spec(config)
    return _world(name, kind, config, with_state=False).spec


def _typed(name: str, model: type[BaseModel], params: Mapping[str, Any] | BaseModel | None) -> BaseModel:
    try:
        return params if isinstance(params, BaseModel) else model.model_validate(dict(params or {}))
    except ValidationError as error:
        fields = messages.leaf_fields(model, "env.")
        for detail in error.errors():
            if detail["type"] == "extra_forbidden":
                key = "env." + ".".join(str(part) for part in detail["loc"])
                raise UserError(f"{name} has no key '{key}': {messages.nearest_keys(key, fields)}") from error
        raise UserError(f"{name}: {messages.mistakes(error, fields, 'env.')[0][1]}") from error


def _world(name: str, world: Callable[..., World], config: BaseModel, with_state: bool) -> World:
    try:
        return world(config, with_state=with_state)
    except ValueError as error:
        raise UserError(f"environment '{name}': {' '.join(str(error).split())}") from error


def _from_factory(
    name: str, params: Mapping[str, Any] | BaseModel | None, copies: int, seed: int, device: torch.device | str
) -> VectorEnv:
    given = params.model_dump() if isinstance(params, BaseModel) else dict(params or {})
    known = registry.factory_parameters(name)
    for key in given:
        if known is not None and key not in known:
            raise UserError(f"environment '{name}' takes no '{key}': {messages.nearest_keys(key, known)}")
    try:
        env = registry.factory(name)(copies=copies, seed=seed, device=device, **given)
    except TypeError as error:
        # Only the call itself is the user's one-line mistake; an error from within the factory keeps its traceback.
        if error.__traceback__ and error.__traceback__.tb_next is None:
            raise UserError(
                f"environment '{name}': {error}; it is called with copies, seed, device and env.* keys"
            ) from error
        raise
    if not isinstance(env, VectorEnv):
        raise UserError(
            f"environment '{name}' returned a {type(env).__name__}: expected a coterie.envs.vector.VectorEnv"
        )
    return env
