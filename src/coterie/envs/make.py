"""Makes environments by name: built-in worlds, environments of other libraries, and `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from coterie.config import messages
from coterie.config.schema import WorkersConfig
from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError, message_of
from coterie.core.seeds import seed_of
from coterie.core.specs import EnvSpec
from coterie.envs import registry
from coterie.envs.contract.vector import GlobalSettings, VectorEnv, close_env
from coterie.envs.external.base_adapter import Adapter, BatchAdapter
from coterie.envs.external.foreign_interfaces import foreign_interface
from coterie.envs.external.hosting.factory import instance_factory, making
from coterie.envs.external.hosting.instance import Instance
from coterie.envs.external.hosting.randomized import EnvFactory
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, DoubleBufferedEnv, EnvBackend, SerialBackend
from coterie.envs.external.returned import described
from coterie.envs.worlds.world import World, WorldEnv
from coterie.ranks.ranks import ONE, Ranks


def make(
    name: str,
    params: Mapping[str, Any] | BaseModel | None = None,
    num_envs: int = 1,
    seed: int = 0,
    *,
    device: torch.device | str = "cpu",
    with_state: bool = False,
    workers: WorkersConfig | None = None,
    ranks: Ranks = ONE,
) -> VectorEnv:
    """Makes a vectorized environment.

    Args:
        name: Name of the environment. `package.module:factory` is a user's own: a factory with a parameter `num_envs`
            is called once, as `factory(num_envs=, seed=, device=, **params)`, and returns a `VectorEnv`. Any other is
            called once per environment, as `factory(**params)`, and returns an environment of PettingZoo's,
            Gymnasium's or PyMARL's interface.
        params: Settings of the environment, as a dictionary or as its configuration model.
        num_envs: Number of environments.
        seed: Seed of the first reset.
        device: Device of the tensors.
        with_state: True if timesteps include the state that centralized critics may observe. A user's own `VectorEnv`
            decides this itself.
        workers: Worker processes that step the environments; by default this process does. Environments that step
            all instances as one batch cannot be divided among workers.
        ranks: Ranks that have `num_envs` environments each. Environments are seeded by their index among all of them;
            those that step all instances as one batch by the rank.

    Raises:
        UserError: For an unknown name, unknown or invalid settings, or a factory that returns another type.
    """
    if num_envs < 1:
        raise UserError(f"num_envs={num_envs}: expected at least 1")
    before = GlobalSettings.now()
    try:
        return _make(name, params, num_envs, seed, device=device, with_state=with_state, workers=workers, ranks=ranks)
    finally:
        before.restore(name)


def _make(
    name: str,
    params: Mapping[str, Any] | BaseModel | None,
    num_envs: int,
    seed: int,
    *,
    device: torch.device | str,
    with_state: bool,
    workers: WorkersConfig | None,
    ranks: Ranks,
) -> VectorEnv:
    """Makes a vectorized environment, see `make`."""
    if registry.is_batch_factory(name):
        _refuse_workers(workers, name)
        seed = _rank_seed(seed, ranks)
        with making(name, workers):
            return _call_factory(name, params, num_envs=num_envs, seed=seed, device=device)
    kind = registry.environment(name)
    config = _validated(name, kind.Config, params)
    if isinstance(kind, Adapter):
        if not with_state and getattr(config, "state", False) is None:  # do not compute what nothing reads
            config = config.model_copy(update={"state": False})
        workers = workers or WorkersConfig()
        first = ranks.rank * num_envs
        return _with_backend(
            name, config, num_envs=num_envs, first_index=first, seed=seed, device=device, workers=workers
        )
    _refuse_workers(workers, name)
    if isinstance(kind, BatchAdapter):
        with making(name, workers):
            return kind.batch(config, num_envs, _rank_seed(seed, ranks), torch.device(device))
    return WorldEnv(_make_world(name, kind, config, with_state), num_envs, seed, device, ranks)


def _rank_seed(seed: int, ranks: Ranks) -> int:
    """Returns the seed of the environments of a rank that are seeded together."""
    return seed if ranks.is_first else seed_of(seed, "rank", ranks.rank)


def _refuse_workers(workers: WorkersConfig | None, name: str) -> None:
    if workers is not None and workers.count:
        raise UserError(
            f"workers.count={workers.count}: {name} steps all its environments as one batch, which cannot be divided "
            "among workers. Leave workers.count out."
        )


def _with_backend(
    name: str,
    config: BaseModel,
    *,
    num_envs: int,
    first_index: int,
    seed: int,
    device: torch.device | str,
    workers: WorkersConfig,
) -> VectorEnv:
    """Another library's environment, double-buffered if `workers.overlap` asks for it."""
    if not workers.overlap or num_envs < 2:
        return BackendVectorEnv(_backend(name, config, num_envs, first_index, workers=workers), seed, device)
    half = -(-num_envs // 2)
    first = BackendVectorEnv(_backend(name, config, half, first_index, workers=workers), seed, device)
    try:
        second = BackendVectorEnv(
            _backend(name, config, num_envs - half, first_index + half, workers=workers), seed, device
        )
    except BaseException:
        close_env(first)
        raise
    return DoubleBufferedEnv(first, second)


def _backend(name: str, config: BaseModel, num_envs: int, first_index: int, *, workers: WorkersConfig) -> EnvBackend:
    """Steps `num_envs` environments from index `first_index` on, in this process or by workers."""
    params = config.model_dump()
    if not workers.count:
        with making(name, workers):
            layout, make_instance = instance_factory(name, params)

        def make_one() -> Instance:
            with making(name, workers):
                return make_instance()

        factory = EnvFactory(name, params)
        return SerialBackend(make_one, layout, num_envs, first_index=first_index, factory=factory)
    if workers.kind == "ray":
        from coterie.envs.external.workers.ray_workers import ray_backend

        return ray_backend(name, params, num_envs, workers, first_index=first_index)
    from coterie.envs.external.workers.processes import ProcessBackend

    return ProcessBackend(name, params, num_envs, workers, first_index=first_index)


def spec_of(name: str, params: Mapping[str, Any] | BaseModel | None = None) -> EnvSpec:
    """Returns the spec of an environment. A user's own factory of `VectorEnv` has none before it is called.

    Raises:
        UserError: As in `make`.
    """
    kind = registry.environment(name)
    config = _validated(name, kind.Config, params)
    if isinstance(kind, Adapter):
        with making(name):
            return instance_factory(name, config.model_dump())[0].spec
    if isinstance(kind, BatchAdapter):
        with making(name):
            return kind.spec(config)
    return _make_world(name, kind, config, with_state=False).spec


def _validated(name: str, model: type[BaseModel], params: Mapping[str, Any] | BaseModel | None) -> BaseModel:
    try:
        return params if isinstance(params, BaseModel) else model.model_validate(dict(params or {}))
    except ValidationError as error:
        fields = messages.leaf_fields(model, "env.")
        for detail in error.errors():
            if detail["type"] == "extra_forbidden":
                key = "env." + ".".join(str(part) for part in detail["loc"])
                raise UserError(f"{name} has no setting '{key}'. {messages.nearest_keys(key, fields)}") from error
        raise UserError(f"{name}: {messages.mistakes(error, fields, 'env.')[0][1]}") from error


def _make_world(name: str, world: Callable[..., World], config: BaseModel, with_state: bool) -> World:
    try:
        return world(config, with_state=with_state)
    except ValueError as error:
        raise UserError(f"environment '{name}': {message_of(error)}") from error


def _call_factory(
    name: str, params: Mapping[str, Any] | BaseModel | None, *, num_envs: int, seed: int, device: torch.device | str
) -> VectorEnv:
    """Calls a user's own factory of a vectorized environment."""
    settings = params.model_dump() if isinstance(params, BaseModel) else dict(params or {})
    known = registry.factory_parameters(name)
    for key in settings:
        if known is not None and key not in known:
            raise UserError(f"environment '{name}' has no setting '{key}'. {messages.nearest_keys(key, known)}")
    try:
        env = registry.factory(name)(num_envs=num_envs, seed=seed, device=device, **settings)
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
            raise UserError(
                f"environment '{name}': {message_of(error)}. It is called with num_envs, seed, device and the settings "
                "env.*"
            ) from error
        raise EnvironmentFailedError.of(f"environment '{name}'", "its factory", error) from error
    if not isinstance(env, VectorEnv):
        said = foreign_interface(env)
        expected = "A factory with a parameter num_envs returns a coterie.envs.contract.vector.VectorEnv"
        raise UserError(f"environment '{name}' returned {described(env) if said is None else said}. {expected}.")
    return env
