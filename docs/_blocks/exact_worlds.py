"""Generated blocks about matrix games and probes: description, payoffs, exact returns, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getdoc
from typing import Any

import numpy as np
import torch
from markdown_tables import key_table, table

import coterie
from coterie.config.messages import leaf_fields
from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.worlds.matrix.games import OneShotConfig
from coterie.envs.worlds.matrix.matrix_game import BimatrixGame, CooperativeGame, MatrixWorld
from coterie.envs.worlds.probe.probe import ProbeWorld
from coterie.envs.worlds.world import WorldEnv

PICTURES = {
    "matrix": (("climbing", 1, (1, 1)), ("prisoners_dilemma", 0, (0, 1))),
    "probe": (("masked", 2, (1,)), ("additive", 0, (2, 1)), ("image", 3, (0,))),
}
"""By family: world, seed of the episode, and the first action of every agent."""


def matrix() -> str:
    """A section per game."""
    return "\n\n".join(_game(name) for name in _names("matrix"))


def probes() -> str:
    """A section per probe."""
    return "\n\n".join(_probe(name) for name in _names("probe"))


def probe_table() -> str:
    """All probes with their claims and returns."""
    rows = []
    for name in _names("probe"):
        reference = _world("probe", name).reference
        rows.append(
            [
                f"[`{name}`](#{name})",
                reference.requirement,
                _number(reference.best_return),
                _number(reference.random_return),
            ]
        )
    return table(["probe", "requirement", "best return", "random return"], rows)


def _names(family: str) -> list[str]:
    return [name.partition("/")[2] for name in registry.environments() if name.startswith(f"{family}/")]


def _world(family: str, name: str) -> Any:
    world = registry.environment(f"{family}/{name}")
    return world(world.Config())


def _words(world: Any) -> str:
    return " ".join((getdoc(type(world)) or "").split())


def _number(value: float) -> str:
    return f"{round(value, 4):g}"


def _own_keys(world: Any, common: set[str]) -> list[str]:
    own = set(leaf_fields(type(world).Config)) - common
    return ["**Keys.**", key_table(type(world).Config, "env.", besides={f"env.{key}" for key in common})] if own else []


# ------------------------------------------------------------------------------------------------------- matrix games


def _game(name: str) -> str:
    world: MatrixWorld = _world("matrix", name)
    parts = [f"### {name}", _words(world)]
    if world.game.players == 2:
        parts += [_payoffs(world, stage) for stage in range(len(world.game.stages)) if _has_payoffs(world, stage)]
    parts.append(_returns(world))
    parts += _own_keys(world, set(leaf_fields(OneShotConfig)) if name != "two_step" else set())
    return "\n\n".join(parts)


def _has_payoffs(world: MatrixWorld, stage: int) -> bool:
    return bool(world.payoffs(stage).any())


def _payoffs(world: MatrixWorld, stage: int) -> str:
    choices = world.game.choices
    cells = world.payoffs(stage).reshape(len(choices), len(choices), -1).tolist()
    rows = [
        [f"**{name}**", *(", ".join(_number(x) for x in cell) for cell in cells[i])] for i, name in enumerate(choices)
    ]
    return table([world.game.stages[stage] or " ", *choices], rows)


def _returns(world: MatrixWorld) -> str:
    limit = world.game.episode_limit
    rounds = "1 round" if limit == 1 else f"{limit} rounds"
    if isinstance(world, CooperativeGame):
        text = f"best {_number(world.best_return())}, random play {_number(world.random_return())}"
        return f"**Returns** of {rounds}: {text}. **Metric:** `{world.game.metric}`."
    assert isinstance(world, BimatrixGame)
    equilibria = []
    for which, strategies in enumerate(world.equilibria):
        played = " against ".join(_strategy(strategy, world.game.choices) for strategy in strategies)
        equilibria.append(f"{played} ({_pair(world.equilibrium_returns(which))})")
    return (
        f"**Equilibria** (returns of `row`, `column` in {rounds}): {'; '.join(equilibria)}. "
        f"Random play: {_pair(world.random_returns())}. **Metric:** `{world.game.metric}`."
    )


def _pair(returns: dict[str, float]) -> str:
    return ", ".join(_number(value) for value in returns.values())


def _strategy(strategy: tuple[float, ...], choices: tuple[str, ...]) -> str:
    if max(strategy) == 1:
        return choices[strategy.index(1)]
    return " / ".join(f"{_number(share)} {name}" for share, name in zip(strategy, choices, strict=True))


# ------------------------------------------------------------------------------------------------------------- probes


def _probe(name: str) -> str:
    world: ProbeWorld = _world("probe", name)
    reference, role = world.reference, world.spec.roles[0]
    steps = "1 step" if world.probe.episode_length == 1 else f"{world.probe.episode_length} steps"
    agents = "1 agent" if role.n == 1 else f"{role.n} agents"
    form = " x ".join(str(size) for size in role.observation_space.shape or ())
    form += " bytes" if role.observation_space.dtype == np.uint8 else f" feature{'s' if form != '1' else ''}"
    action = [f"{' x '.join(str(count) for count in role.action.choices)} choices"] if role.action.choices else []
    if role.action.continuous:
        action.append("a number" if role.action.continuous == 1 else f"{role.action.continuous} numbers")
    without = "" if reference.control_return is None else f" It earns {_number(reference.control_return)}."
    parts = [
        f"### {name}",
        _words(world),
        f"{agents}, {steps}. Observation: {form}. Action: {' and '.join(action)}. "
        f"**Return:** best {_number(reference.best_return)}, random play {_number(reference.random_return)}.",
        f"**Requirement.** {reference.requirement}",
        f"**Control.** {reference.negative_control}{without}",
        *_own_keys(world, set()),
    ]
    return "\n\n".join(parts)


# ----------------------------------------------------------------------------------------------------------- pictures


def pictures(size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Pictures by `family/name`."""
    for family, shown in PICTURES.items():
        for name, seed, choice in shown:
            env = coterie.make(f"{family}/{name}", seed=seed)
            assert isinstance(env, WorldEnv)
            env.reset(seed)
            choices = torch.tensor([list(choice)])
            env.step({role: Action(choices[:, place, None]) for role, place in env.spec.role_slices().items()})
            yield f"{family}/{name}", env.render(0, size)
