"""The algorithm under test: construction with small settings, rollouts, updates, and the bits of its policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from coterie.algos.algorithm import Algorithm, AlgorithmContext
from coterie.core.errors import ReportedError, UserError, one_line
from coterie.core.tree import tree_leaves, tree_map
from coterie.core.types import Rollout, Timestep
from coterie.envs.worlds.world import World, WorldEnv
from coterie.training.collector import Collector

CPU = torch.device("cpu")

SMALL: dict[str, Any] = {
    "hidden_sizes": (16, 16),
    "critic_hidden_sizes": None,
    "embedding_size": 8,
    "rnn_size": 16,
    "mixing_embed_dim": 8,
    "hypernet_embed_dim": 16,
    "num_minibatches": 1,
    "critic_time_chunks": 1,
    "sequence_length": None,
    "learning_starts": 0,
    "random_steps": 0,
    "burn_in": 0,
    "weight_decay": 0.0,
}
"""Settings that make an algorithm small. Applied where it has a setting of this name that the user did not give."""


class NotApplicable(Exception):
    """A check cannot be applied to the algorithm. The message is the reason."""


class AlgorithmRaised(Exception):
    """The algorithm raised an exception. The message is one line with the file and line of the user's code."""


@dataclass(frozen=True)
class Subject:
    """An algorithm under test.

    Attributes:
        name: Name for the report.
        cls: The class.
        params: Its settings.
        given: Names of the settings that the user gave, which checks leave as they are.
    """

    name: str
    cls: type[Algorithm]
    params: BaseModel
    given: frozenset[str] = frozenset()

    def has(self, setting: str) -> bool:
        """True if the algorithm has a setting of this name."""
        return setting in type(self.params).model_fields

    def config(self, changes: dict[str, Any]) -> BaseModel:
        """Returns the settings with changes, without those that it does not have, or that the user gave."""
        fields = type(self.params).model_fields
        wanted = {key: value for key, value in changes.items() if key in fields and key not in self.given}
        values = {key: getattr(self.params, key) for key in fields}
        try:
            return type(self.params)(**values | wanted)
        except ValidationError as error:
            refused = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
        return type(self.params)(**values | {key: value for key, value in wanted.items() if key not in refused})

    def require_kind(self, *kinds: str) -> str:
        """Returns the first of some kinds of actions that the algorithm supports.

        Raises:
            NotApplicable: If it supports none.
        """
        for kind in kinds:
            if kind in self.cls.capabilities.actions:
                return kind
        raise NotApplicable(f"the algorithm does not support {' or '.join(kinds)} actions")

    def start(self, world: World, *, num_envs: int, seed: int = 0, **settings: Any) -> Trial:
        """Constructs the algorithm for a world.

        Raises:
            NotApplicable: If the algorithm does not support the world.
            AlgorithmRaised: If its constructor raises.
        """
        env = WorldEnv(world, num_envs, seed=0)
        (team,) = env.spec.default_teams()
        context = AlgorithmContext(team=team, num_envs=num_envs, seed=seed, device=CPU)
        try:
            self.cls.capabilities.check(self.name, team)
        except UserError as error:
            raise NotApplicable(str(error)) from error
        algorithm = called("__init__", lambda: self.cls(self.config(SMALL | settings), context))
        return Trial(world, algorithm, Collector(env, {team.name: algorithm.policy}, seed=0))


def called(method: str, function: Callable[[], Any]) -> Any:
    """Calls a method of the algorithm.

    Raises:
        AlgorithmRaised: If it raises, with the place in the user's code.
        NotApplicable: If it refuses its settings or its team.
    """
    try:
        return function()
    except UserError as error:
        raise NotApplicable(str(error)) from error
    except ReportedError as error:
        raise AlgorithmRaised(f"{method}: {error}") from error
    except Exception as error:
        raise AlgorithmRaised(f"{method} raised {one_line(error)}") from error


@dataclass
class Trial:
    """An algorithm that trains in a world."""

    world: World
    algorithm: Algorithm
    collector: Collector

    def collect(self) -> Rollout:
        """Returns the next rollout."""
        (rollout,) = called("policy.act", lambda: self.collector.advance(self.algorithm.rollout_length)[0]).values()
        return rollout

    def update(self, rollout: Rollout, progress: float = 0.5) -> dict[str, float]:
        """Updates the algorithm with a copy of a rollout and returns its metrics."""
        return called("update", lambda: self.algorithm.update(tree_map(torch.clone, rollout), progress))

    def act(self, timestep: Timestep, mode: Any = "greedy", seed: int = 0) -> dict[str, Any]:
        """Returns the actions at the first timestep of an episode by role."""
        policy, num_envs = self.algorithm.policy, len(timestep.acted)

        def act() -> dict[str, Any]:
            with torch.no_grad():
                (noise,) = policy.draw_noise(1, num_envs, torch.Generator().manual_seed(seed))
                return policy.act(timestep, policy.initial_hidden_state(num_envs), noise, mode)[0]

        return called("policy.act", act)

    def bits(self) -> list[Tensor]:
        """Returns copies of the tensors of the policy."""
        leaves = tree_leaves(called("policy.state_dict", self.algorithm.policy.state_dict))
        return [x.detach().clone() for x in leaves if isinstance(x, Tensor)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """True if two lists of tensors have the same bits."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Recording:
    """Rollouts that an algorithm was trained with, and the bits of its policy afterwards.

    Attributes:
        subject: The algorithm.
        world: The world.
        num_envs: Number of environments.
        settings: Settings of the algorithm.
        rollouts: Rollouts in the order of the updates.
        before: Bits of the policy before the first update.
        bits: Bits of the policy after the last one.
        metrics: Metrics of every update.
    """

    subject: Subject
    world: World
    num_envs: int
    settings: dict[str, Any]
    rollouts: tuple[Rollout, ...]
    before: list[Tensor]
    bits: list[Tensor]
    metrics: tuple[dict[str, float], ...]

    def trial(self, seed: int = 0) -> Trial:
        """Returns another instance of the algorithm, before its first update."""
        return self.subject.start(self.world, num_envs=self.num_envs, seed=seed, **self.settings)

    def replay(self, change: Callable[[Rollout], Rollout], *, of_first: bool = False) -> list[Tensor]:
        """Returns the bits of the policy after updates with changed rollouts; `of_first`: only the first is changed."""
        trial = self.trial()
        for k, rollout in enumerate(self.rollouts):
            trial.update(rollout if of_first and k else change(rollout))
        return trial.bits()


RECORDED: dict[str, Any] = {
    "rollout_length": 10,
    "batch_size": 8,
    "buffer_size": 2000,
    "epochs": 2,
    "gradient_steps": 4,
    "lr": 1e-3,
}
"""Settings of updates whose bits are compared."""


def record(
    subject: Subject,
    world: World,
    *,
    num_envs: int = 8,
    updates: int = 3,
    change: Callable[[Rollout], Rollout] = lambda rollout: rollout,
    of_first: bool = False,
    **settings: Any,
) -> Recording:
    """Trains an algorithm for a few updates and records its rollouts.

    Args:
        subject: The algorithm.
        world: The world.
        num_envs: Number of environments.
        updates: Number of updates.
        change: Function that changes rollouts before the update.
        of_first: Change only the first rollout.
        **settings: Settings of the algorithm, if it has them.
    """
    settings = RECORDED | settings
    if not subject.has("buffer_size"):
        settings["batch_size"] = None  # of on-policy learners: all sequences
    trial = subject.start(world, num_envs=num_envs, **settings)
    before, rollouts, metrics = trial.bits(), [], []
    for _ in range(updates):
        rollout = trial.collect()
        rollouts.append(tree_map(torch.clone, rollout if of_first and rollouts else change(rollout)))
        metrics.append(trial.update(rollouts[-1]))
    return Recording(
        subject=subject,
        world=world,
        num_envs=num_envs,
        settings=settings,
        rollouts=tuple(rollouts),
        before=before,
        bits=trial.bits(),
        metrics=tuple(metrics),
    )
