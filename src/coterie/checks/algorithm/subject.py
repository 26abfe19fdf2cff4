"""The algorithm under test: construction with small settings, rollouts, updates, and its bits and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from coterie.algos.algorithm import Algorithm, AlgorithmContext, Capabilities
from coterie.checks.findings import Skipped
from coterie.core.errors import ReportedError, UserError, one_line
from coterie.core.tree import tree_leaves, tree_map
from coterie.core.types import Rollout, Timestep
from coterie.envs.worlds.world import World, WorldEnv
from coterie.training.collector import Collector

Found = Iterator[tuple[str, str]]
"""Names of mistakes, keys of `coterie.checks.algorithm.mistakes.MISTAKES`, each with the evidence."""

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
    "bootstrap_at_limit": True,
    "value_time_left": False,
}
"""Settings that make an algorithm small, and its values those of tasks without end. Applied where it has a setting of
this name that the user did not give.
"""


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

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the algorithm."""
        return self.cls.capabilities

    @property
    def agents(self) -> int:
        """Number of agents to train it with: 2 if it supports several."""
        return 2 if self.capabilities.multi_agent else 1

    def has(self, setting: str) -> bool:
        """True if the algorithm has a setting of this name."""
        return setting in type(self.params).model_fields

    def require_learning(self) -> None:
        """Raises Skipped if the algorithm does not improve its policy."""
        if not self.capabilities.learns:
            raise Skipped("the algorithm does not learn (Capabilities.learns)")

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
        """Returns the first of some kinds of actions that the algorithm supports. Skipped if it supports none."""
        for kind in kinds:
            if kind in self.capabilities.actions:
                return kind
        raise Skipped(f"the algorithm does not support {' or '.join(kinds)} actions")

    def start(self, world: World, *, num_envs: int, seed: int = 0, **settings: Any) -> Trial:
        """Constructs the algorithm for a world.

        Raises:
            Skipped: If the algorithm does not support the world.
            AlgorithmRaised: If its constructor raises.
        """
        env = WorldEnv(world, num_envs, seed=0)
        (team,) = env.spec.default_teams()
        context = AlgorithmContext(team=team, num_envs=num_envs, seed=seed, device=torch.device("cpu"))
        try:
            self.capabilities.check(self.name, team)
        except UserError as error:
            raise Skipped(str(error)) from error
        changes = SMALL | settings
        if getattr(self.params, "n_step", 1) is None:  # episodes are too short for the default of unknown limits
            changes = {"n_step": 1} | changes
        algorithm = called("__init__", lambda: self.cls(self.config(changes), context))
        return Trial(world, algorithm, Collector(env, {team.name: algorithm.behavior_policy}, seed=0))


def called(method: str, function: Callable[[], Any]) -> Any:
    """Calls a method of the algorithm.

    Raises:
        AlgorithmRaised: If it raises, with the place in the user's code.
        Skipped: If it refuses its settings or its team.
    """
    try:
        return function()
    except UserError as error:
        raise Skipped(str(error)) from error
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
        return _tensors(called("policy.state_dict", self.algorithm.policy.state_dict))

    def weights(self) -> list[Tensor]:
        """Returns copies of the tensors of the policy except statistics of observations, which are not learned."""
        state = called("policy.state_dict", self.algorithm.policy.state_dict)
        return _tensors({name: value for name, value in state.items() if name != "moments"})


def _tensors(state: Any) -> list[Tensor]:
    return [x.detach().clone() for x in tree_leaves(state) if isinstance(x, Tensor)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """True if two lists of tensors have the same bits."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


RECORDED: dict[str, Any] = {
    "rollout_length": 10,
    "batch_size": 8,
    "buffer_size": 2000,
    "epochs": 2,
    "gradient_steps": 4,
    "lr": 1e-3,
}
"""Settings of updates whose bits are compared."""


class Recording:
    """A training of a few updates, to be repeated with other rollouts.

    Args:
        subject: The algorithm.
        world: The world, of which 8 environments are stepped.
        updates: Number of updates.
        change: Function that changes rollouts before the update.
        of_first: Change only the first rollout.
        **settings: Settings of the algorithm, if it has them.
    """

    def __init__(
        self,
        subject: Subject,
        world: World,
        *,
        updates: int = 3,
        change: Callable[[Rollout], Rollout] = lambda rollout: rollout,
        of_first: bool = False,
        **settings: Any,
    ):
        self._subject, self._world, self._settings = subject, world, RECORDED | settings
        if not subject.has("buffer_size"):
            self._settings["batch_size"] = None  # of on-policy learners: all sequences
        trial = self.trial()
        self.rollouts: list[Rollout] = []
        """Rollouts in the order of the updates."""
        self.metrics: list[dict[str, float]] = []
        """Metrics of every update."""
        self.before = trial.weights()
        """Weights of the policy before the first update."""
        for _ in range(updates):
            rollout = trial.collect()
            self.rollouts.append(tree_map(torch.clone, rollout if of_first and self.rollouts else change(rollout)))
            self.metrics.append(trial.update(self.rollouts[-1]))
        self.weights, self.bits = trial.weights(), trial.bits()
        """Weights and all bits of the policy after the last update."""

    def trial(self, seed: int = 0) -> Trial:
        """Returns another instance of the algorithm, before its first update."""
        return self._subject.start(self._world, num_envs=8, seed=seed, **self._settings)

    def replay(self, change: Callable[[Rollout], Rollout], *, of_first: bool = False) -> list[Tensor]:
        """Returns the bits of the policy after updates with changed rollouts; `of_first`: only the first is changed."""
        trial = self.trial()
        for k, rollout in enumerate(self.rollouts):
            trial.update(rollout if of_first and k else change(rollout))
        return trial.bits()


# --------------------------------------------------------------------------------------- attributes of an algorithm


@dataclass(frozen=True)
class Leaf:
    """A number, a tensor or the state of a generator that an algorithm holds.

    Attributes:
        value: A copy of the value.
        kind: `optimizer` if an optimizer holds it, `generator` or `other`.
    """

    value: Any
    kind: str

    def __eq__(self, other: object) -> bool:
        """True if both have the same bits; NaN equals NaN."""
        one, two = self.value, other.value if isinstance(other, Leaf) else None
        if isinstance(one, Tensor):
            return isinstance(two, Tensor) and one.shape == two.shape and torch.equal(one, two)
        return one == two or (one != one and two != two)


def leaves(root: Any) -> dict[str, Leaf]:
    """Returns what an object holds by path such as `critic.weight`: what a checkpoint lacks, which network is frozen.

    Objects that are reached on several paths are listed once.
    """
    found: dict[str, Leaf] = {}
    _walk(root, "", "other", found, set(), 12)
    return found


def _walk(node: Any, path: str, kind: str, found: dict[str, Leaf], seen: set[int], depth: int) -> None:
    if isinstance(node, Tensor):
        found[path] = Leaf(node.detach().clone(), kind)
    elif isinstance(node, torch.Generator):
        found[path] = Leaf(node.get_state(), "generator" if kind == "other" else kind)
    elif isinstance(node, bool | int | float):
        found[path] = Leaf(node, kind)
    elif depth and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, torch.optim.Optimizer) or "optim" in type(node).__name__.lower():
            kind = "optimizer"
        for name, part in _parts(node):
            _walk(part, f"{path}.{name}" if path else name, kind, found, seen, depth - 1)


def _parts(node: Any) -> list[tuple[str, Any]]:
    """Returns the parts of a container or of an object with attributes, by name."""
    if isinstance(node, nn.Module):
        own = [(name, part) for name, part in vars(node).items() if not name.startswith("_")]
        return [*own, *node._parameters.items(), *node._buffers.items(), *node._modules.items()]
    if isinstance(node, dict):
        return [(str(key) if isinstance(key, str | int) else f"item_{k}", node[key]) for k, key in enumerate(node)]
    if isinstance(node, list | tuple):
        return [(str(k), part) for k, part in enumerate(node)]
    if isinstance(node, type) or callable(node) or not hasattr(node, "__dict__"):
        return []
    return list(vars(node).items())


def frozen_copies(before: dict[str, Leaf], after: dict[str, Leaf]) -> list[str]:
    """Returns paths of weights that were a copy of other weights, and did not change while those did."""
    weights = [p for p, x in before.items() if isinstance(x.value, Tensor) and x.value.ndim > 1 and x.value.any()]
    kept = [path for path in weights if before[path] == after.get(path)]
    changed = [path for path in weights if path not in kept]
    return [path for path in kept if any(before[path] == before[other] for other in changed)]
