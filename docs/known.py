"""What the pages of matrix games and probes say of each world: its own words, payoffs, exact returns, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import getdoc
from typing import Any

import numpy as np
import torch

import coterie
from coterie import registry
from coterie.envs.matrix.game import Bimatrix, Cooperative, MatrixWorld
from coterie.envs.matrix.opponents import OneShotConfig
from coterie.envs.probe.task import ProbeWorld
from coterie.envs.world import WorldEnv
from coterie.messages import leaf_fields
from coterie.types import Action

Table = Callable[[Sequence[str], list[list[str]]], str]
Keys = Callable[..., str]

PICTURES = {
    "matrix": (("climbing", 1, (1, 1)), ("prisoners_dilemma", 0, (0, 1))),
    "probe": (("masked", 2, (1,)), ("additive", 0, (2, 1)), ("image", 3, (0,))),
}
"""By family: the worlds that are shown, the seed of the episode, and what everybody chooses in its first step."""


def matrix(table: Table, keys: Keys) -> str:
    """A section a game."""
    return "\n\n".join(_game(name, table, keys) for name in _names("matrix"))


def probes(table: Table, keys: Keys) -> str:
    """A section a probe."""
    return "\n\n".join(_probe(name, table, keys) for name in _names("probe"))


def probe_table(table: Table) -> str:
    """All probes with their claims and returns."""
    rows = []
    for name in _names("probe"):
        known = _world("probe", name).known
        rows.append([f"[`{name}`](#{name})", known.claim, _number(known.best), _number(known.random)])
    return table(["probe", "what is asked for", "best return", "random return"], rows)


def _names(family: str) -> list[str]:
    return [name.partition("/")[2] for name in registry.environments() if name.startswith(f"{family}/")]


def _world(family: str, name: str) -> Any:
    world = registry.environment(f"{family}/{name}")
    return world(world.Config())


def _words(world: Any) -> str:
    return " ".join((getdoc(type(world)) or "").split())


def _number(value: float) -> str:
    return f"{round(value, 4):g}"


def _own_keys(world: Any, keys: Keys, common: set[str]) -> list[str]:
    own = set(leaf_fields(type(world).Config)) - common
    return ["**Keys.**", keys(type(world).Config, "env.", besides={f"env.{key}" for key in common})] if own else []


# ------------------------------------------------------------------------------------------------------- matrix games


def _game(name: str, table: Table, keys: Keys) -> str:
    world: MatrixWorld = _world("matrix", name)
    parts = [f"### {name}", _words(world)]
    if world.game.players == 2:
        parts += [_payoffs(world, stage, table) for stage in range(len(world.game.stages)) if _pays(world, stage)]
    parts.append(_returns(world))
    parts += _own_keys(world, keys, set(leaf_fields(OneShotConfig)) if name != "two_step" else set())
    return "\n\n".join(parts)


def _pays(world: MatrixWorld, stage: int) -> bool:
    return bool(world.table(stage).any())


def _payoffs(world: MatrixWorld, stage: int, table: Table) -> str:
    choices = world.game.choices
    cells = world.table(stage).reshape(len(choices), len(choices), -1).tolist()
    rows = [
        [f"**{name}**", *(", ".join(_number(x) for x in cell) for cell in cells[i])] for i, name in enumerate(choices)
    ]
    return table([world.game.stages[stage] or " ", *choices], rows)


def _returns(world: MatrixWorld) -> str:
    limit = world.game.limit
    rounds = "1 round" if limit == 1 else f"{limit} rounds"
    if isinstance(world, Cooperative):
        said = f"best {_number(world.best_return())}, random play {_number(world.random_return())}"
        return f"**Returns** of {rounds}: {said}. **Metric:** `{world.game.metric}`."
    assert isinstance(world, Bimatrix)
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


def _probe(name: str, table: Table, keys: Keys) -> str:
    world: ProbeWorld = _world("probe", name)
    known, role = world.known, world.spec.roles[0]
    steps = "1 step" if world.plan.length == 1 else f"{world.plan.length} steps"
    agents = "1 agent" if role.n == 1 else f"{role.n} agents"
    form = " x ".join(str(size) for size in role.observation_space.shape or ())
    form += " bytes" if role.observation_space.dtype == np.uint8 else f" feature{'s' if form != '1' else ''}"
    action = [f"{' x '.join(str(count) for count in role.action.choices)} choices"] if role.action.choices else []
    if role.action.continuous:
        action.append("a number" if role.action.continuous == 1 else f"{role.action.continuous} numbers")
    without = "" if known.without is None else f" It earns {_number(known.without)}."
    parts = [
        f"### {name}",
        _words(world),
        f"{agents}, {steps}. Observation: {form}. Action: {' and '.join(action)}. "
        f"**Return:** best {_number(known.best)}, random play {_number(known.random)}.",
        f"**Asked for.** {known.claim}",
        f"**Control.** {known.control}{without}",
        *_own_keys(world, keys, set()),
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
