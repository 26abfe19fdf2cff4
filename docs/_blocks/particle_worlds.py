"""Generated blocks about the particle worlds: scenarios, keys, returns of untrained play, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from markdown_tables import code_list, key_table, table
from scenarios import SCENARIOS, Scenario

import coterie
from coterie.config.messages import leaf_fields
from coterie.core.specs import EnvSpec
from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.worlds.particle.particle_world import ParticleConfig
from coterie.envs.worlds.world import WorldEnv

SIZE = 270
"""Width of a picture on the page, in pixels."""
EPISODES = 10_000
"""Episodes per scenario for the returns of untrained play."""


def _world(name: str) -> Any:
    return registry.environment(f"particle/{name}")


def _spec(name: str, **params: Any) -> EnvSpec:
    world = _world(name)
    return world(world.Config(**params), with_state=True).spec


def particle_keys() -> str:
    """Keys that all scenarios have."""
    return key_table(ParticleConfig, "env.")


def particle_scenarios() -> str:
    """A section per scenario. ValueError if code and descriptions do not name the same scenarios."""
    known_names = {name for name in registry.environments() if name.startswith("particle/")}
    missing = {name.rpartition("/")[2] for name in known_names} ^ set(SCENARIOS)
    if missing:
        raise ValueError(f"scenarios without a description, or descriptions without a scenario: {sorted(missing)}")
    return "\n\n".join(_scenario(name, scenario) for name, scenario in SCENARIOS.items())


def _scenario(name: str, scenario: Scenario) -> str:
    spec = _spec(name)
    picture = f'<img src="../pictures/particle/{name}.png" width="{SIZE}" alt="particle/{name}">'
    roles = [
        [f"`{role.name}`", f"`{role.group}`", ", ".join(f"`{agent}`" for agent in role.agents)] for role in spec.roles
    ]
    states = ", ".join(f"`{state}` {size}" for state, size in spec.state_sizes.items())
    own = set(leaf_fields(_world(name).Config)) - set(leaf_fields(ParticleConfig))
    common = {f"env.{key}" for key in leaf_fields(ParticleConfig)}
    parts = [
        f"### {name}",
        picture,
        scenario.story,
        table(["role", "team", "agents"], roles),
        f"**Reward.** {scenario.reward}",
        "**Observation.**",
        _layout(spec, scenario),
        f"**Actions.** Discrete: {scenario.acts}. Continuous: "
        + _each(spec, [f"{role.action.continuous} numbers" for role in _spec(name, actions="continuous").roles])
        + f" in [0, 1]. **States** for critics: {states} numbers. "
        + f"**Metrics** of an episode: {code_list(spec.metrics)}.",
    ]
    if own:
        parts += ["**Keys.**", key_table(_world(name).Config, "env.", besides=common)]
    return "\n\n".join(parts)


def _each(spec: EnvSpec, values: list[str]) -> str:
    """One value if all roles agree, else role by role."""
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{role.name} {value}" for role, value in zip(spec.roles, values, strict=True))


def _layout(spec: EnvSpec, scenario: Scenario) -> str:
    """The parts of every role's observation. ValueError if their sizes do not add up to the observation's."""
    rows = []
    for role in spec.roles:
        at = 0
        for meaning, size in scenario.observation[role.name]:
            places = f"{at}" if size == 1 else f"{at} to {at + size - 1}"
            rows.append([f"`{role.name}`" if at == 0 else "", places, meaning])
            at += size
        if (at,) != role.observation_space.shape:
            raise ValueError(
                f"{spec.name}, {role.name}: {at} features are described, the space is {role.observation_space.shape}"
            )
    return table(["role", "features", "meaning"], rows)


def particle_baselines() -> str:
    """Mean returns of untrained play per agent of each role, with the standard error of the mean."""
    torch.set_num_threads(1)  # so little work is slower with more
    rows = []
    for name in SCENARIOS:
        variants = ["mpe2", "openai"] if "variant" in _world(name).Config.model_fields else [None]
        for variant in variants:
            params = {} if variant is None else {"variant": variant}
            spec = _spec(name, **params)
            random, still = (_returns(name, params, moves) for moves in (True, False))
            words = [", ".join(_baseline(spec, returns)) for returns in (random, still)]
            rows.append([f"`{name}`" + (f", `{variant}`" if variant else ""), *words])
    return table(["scenario", "random actions", "always action 0"], rows)


def _baseline(spec: EnvSpec, returns: torch.Tensor) -> list[str]:
    words = []
    for name, place in spec.role_slices().items():
        own = returns[:, place].mean(1)
        words.append(f"`{name}` {own.mean():.2f} ± {own.std() / len(own) ** 0.5:.2f}")
    return words


def _returns(name: str, params: dict[str, Any], moves: bool) -> torch.Tensor:
    """Returns per agent [episodes, N], one episode per environment."""
    env = coterie.make(f"particle/{name}", num_envs=EPISODES, seed=0, **params)
    env.reset(0)
    generator = torch.Generator().manual_seed(1)
    limit = env.spec.episode_limit
    assert limit is not None
    return torch.stack([env.step(_actions(env.spec, EPISODES, generator, moves))[0].reward for _ in range(limit)]).sum(
        0
    )


def _actions(spec: EnvSpec, num_envs: int, generator: torch.Generator, moves: bool) -> dict[str, Action]:
    return {
        role.name: Action(
            torch.randint(role.action.choices[0] if moves else 1, (num_envs, role.n, 1), generator=generator)
        )
        for role in spec.roles
    }


def particle_pictures() -> Iterator[tuple[str, Any]]:
    """A picture of every scenario after some random moves, by name."""
    for name, scenario in SCENARIOS.items():
        env = coterie.make(f"particle/{name}", seed=scenario.seed)
        assert isinstance(env, WorldEnv)
        env.reset(scenario.seed)
        generator = torch.Generator().manual_seed(scenario.seed)
        for _ in range(scenario.steps):
            env.step(_actions(env.spec, 1, generator, True))
        yield f"particle/{name}", env.render(0, 2 * SIZE)
