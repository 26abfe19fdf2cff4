"""Checks that train for a few seconds in worlds with exactly known answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from coterie.commands.algorithm_check import object_state
from coterie.commands.algorithm_check.structural import Found, require_learning
from coterie.commands.algorithm_check.subject import NotApplicable, Subject, Trial
from coterie.commands.algorithm_check.table_world import ActionKind, Table, TableWorld
from coterie.core.types import Action, Rollout
from coterie.envs.worlds.probe.recall import MemoryConfig, MemoryProbe
from coterie.envs.worlds.probe.team_probes import AdditiveConfig, AdditiveProbe
from coterie.envs.worlds.world import Observation, Outcome, State, World

QUICK: dict[str, Any] = {
    "rollout_length": 8,
    "lr": 1e-2,
    "epochs": 8,
    "entropy_coef": 0.0,
    "value_clip_eps": None,
    "gamma": 0.9,
    "rnn": "none",
    "obs_last_action": False,
    "critic_last_action": False,
    "batch_size": 64,
    "buffer_size": 20_000,
    "gradient_steps": 8,
    "tau": 0.1,
    "epsilon_start": 0.5,
    "epsilon_end": 0.05,
    "epsilon_decay_steps": 2000,
    "epsilon_schedule": "linear",
    "normalize_advantage": True,
    "noise_std": 1.0,
    "random_steps": 2500,
    "policy_delay": 1,
    "logit_penalty": 1e-2,
    "temperature": 0.05,
    "learning_starts": 500,
    "learn_temperature": False,
    "reward_scale": "none",
}
"""Settings with which an algorithm learns the smallest tasks in seconds, if it has them and the user gave no others."""

Solved = Callable[[Trial], bool]


def train(subject: Subject, world: World, solved: Solved, *, updates: int = 100, **settings: Any) -> Trial:
    """Trains until `solved` is True after two checks in a row, or for a number of updates.

    Args:
        subject: The algorithm.
        world: The world.
        solved: Function of the trial, called after every second update.
        updates: Largest number of updates.
        **settings: Settings of the algorithm, if it has them.
    """
    require_learning(subject)
    settings = QUICK | settings
    replays = subject.has("buffer_size")
    if not replays:
        settings |= {"batch_size": None, "epsilon_start": 0.1}
        if not subject.has("clip_eps"):  # several epochs would move the policy too far
            del settings["epochs"]
            settings |= {"lr": 3e-3, "critic_lr": 1e-2}
    if getattr(subject.params, "target_update_interval", None) is not None:
        settings["target_update_interval"] = 10
    trial = subject.start(world, num_envs=16 if replays else 32, **settings)
    in_a_row = 0
    for k in range(updates):
        trial.update(trial.collect())
        if k % 2:
            in_a_row = in_a_row + 1 if solved(trial) else 0
        if in_a_row == 2:
            break
    return trial


def action_kind(subject: Subject) -> ActionKind:
    return "discrete" if subject.require_kind("discrete", "continuous") == "discrete" else "continuous"


def greedy_choices(trial: Trial) -> list[int]:
    """Returns the greedy choice of the first agent in each state of a table."""
    assert isinstance(trial.world, TableWorld)
    return trial.world.choice(trial.act(trial.world.first_timestep()))[:, 0].tolist()


def _choices(subject: Subject, table: Table, expected: dict[int, int], **settings: Any) -> tuple[Trial, list[int]]:
    """Trains in a table until the greedy choices in some states are as expected. Returns the greedy choices."""

    def solved(trial: Trial) -> bool:
        found = greedy_choices(trial)
        return all(found[state] == choice for state, choice in expected.items())

    trial = train(subject, TableWorld(table, action_kind(subject)), solved, **settings)
    return trial, greedy_choices(trial)


def gamma_of(subject: Subject, wanted: float) -> float:
    """Returns the discount of a check: `wanted`, or what the user gave.

    Raises:
        NotApplicable: If the algorithm has no setting gamma.
    """
    if not subject.has("gamma"):
        raise NotApplicable("the algorithm has no setting gamma")
    return float(vars(subject.config({"gamma": wanted}))["gamma"])


def check_reward(subject: Subject) -> Found:
    """The policy learns the rewarded action."""
    _, found = _choices(subject, Table(((-1.0, 1.0), (1.0, -1.0))), {0: 1, 1: 0})
    if found == [0, 1]:
        yield "wrong-sign", "in both of two states, the greedy action has the reward -1 instead of 1"
    elif found != [1, 0]:
        yield "reward-not-learned", f"greedy choices {found} in two states, expected [1, 0]"


def check_observation(subject: Subject) -> Found:
    """Each agent learns the action that fits its own observation."""
    agents = 2 if subject.cls.capabilities.multi_agent else 1
    table = Table(((1.0, -1.0), (-1.0, 1.0)) * 4)  # too many states to be right by chance
    world = TableWorld(table, action_kind(subject), agents)
    expected = torch.tensor([0, 1] * 4)[:, None].expand(-1, agents)

    def choices(trial: Trial) -> Tensor:
        return world.choice(trial.act(world.first_timestep()))

    found = choices(train(subject, world, lambda trial: torch.equal(choices(trial), expected)))
    right = float((found == expected).float().mean())
    if right < 1:
        yield "observation-ignored", f"{right:.0%} of greedy choices of {agents} agents in 8 states fit, expected all"


def check_group_reward(subject: Subject) -> Found:
    """Agents learn from a reward of their group (probe/additive)."""
    if not subject.cls.capabilities.multi_agent:
        raise NotApplicable("the algorithm trains a single agent (Capabilities.multi_agent)")
    subject.require_kind("discrete")
    world = AdditiveProbe(AdditiveConfig(), with_state=True)

    def choices(trial: Trial) -> list[int]:
        timestep = trial.collector.env.reset(1)
        return trial.act(timestep)["agent"].discrete[0, :, 0].tolist()

    # Two agents explore for longer.
    settings: dict[str, Any] = {"temperature": 0.3} if subject.has("learn_temperature") else {}
    found = choices(train(subject, world, lambda trial: choices(trial) == [2, 0], **settings))
    if found != [2, 0]:
        yield "group-reward-ignored", f"probe/additive: greedy choices {found}, expected [2, 0]"


def check_discount(subject: Subject) -> Found:
    """A reward of 1 in the next timestep is worth gamma."""
    gamma = gamma_of(subject, 0.5)
    if not 0.2 <= gamma <= 0.8:
        raise NotApplicable(f"algo.gamma={gamma} is too close to 0 or 1 to tell discounts apart")
    prices = (gamma**2 / 2, (gamma**2 + gamma) / 2, (gamma + 1) / 2)
    table = Table(
        reward=(*((price, 0.0) for price in prices), (1.0, 1.0)),
        successor=((0, 3), (1, 3), (2, 3), (3, 3)),
        ends=((True, False), (True, False), (True, False), (True, True)),
    )
    trial, found = _choices(subject, table, {0: 1, 1: 1, 2: 0}, gamma=gamma)
    waits = found[:3]
    offers = ", ".join(
        f"{price:.3g} ({'refused' if wait else 'taken'})" for price, wait in zip(prices, waits, strict=False)
    )
    evidence = f"offered now, instead of 1 a step later, which is worth gamma = {gamma:g}: {offers}"
    if waits == [1, 1, 0]:
        return
    if waits[0] == 0:
        yield _missing_bootstrap(subject, trial, evidence)
    elif waits[1] == 0:
        yield "discounted-twice", evidence
    else:
        yield "not-discounted", evidence


def _missing_bootstrap(subject: Subject, trial: Trial, evidence: str) -> tuple[str, str]:
    """Returns the mistake of an algorithm that later rewards do not reach."""
    fresh = object_state.leaves(trial_copy(subject, trial).algorithm)
    frozen = object_state.frozen_copies(fresh, object_state.leaves(trial.algorithm))
    if frozen:
        return "target-network-frozen", f"{evidence}; {frozen[0]} still has its initial values"
    return "not-bootstrapped", evidence


def trial_copy(subject: Subject, trial: Trial) -> Trial:
    """Returns another trial in the same world, before its first update."""
    return subject.start(trial.world, num_envs=trial.collector.env.num_envs, **QUICK)


def check_time_limit(subject: Subject) -> Found:
    """Rewards after a time limit count, and those after a termination do not."""
    gamma = gamma_of(subject, 0.9)
    price = gamma / 2
    table = Table(
        reward=((price, 0.0), (price, 0.0), (1.0, 1.0)),
        successor=((0, 2), (1, 2), (2, 2)),
        ends=((True, False), (True, True), (True, True)),
        limit=1,
    )
    _, found = _choices(subject, table, {0: 1, 1: 0}, gamma=gamma)
    offer = f"the agent takes {price:.3g} now rather than a timestep with a value of {gamma:.3g}"
    if found[0] == 0:
        yield "truncation-as-termination", f"{offer} after a time limit"
    if found[1] == 1:
        evidence = f"the agent refuses {price:.3g} for a termination whose last observation looks like one of value 1"
        yield "termination-bootstrapped", evidence


def check_masked_value(subject: Subject) -> Found:
    """Values of masked choices do not enter targets."""
    subject.require_kind("discrete")
    gamma = gamma_of(subject, 0.9)
    table = Table(
        reward=((-1.0, 0.0, 0.0), (-2.0, -2.0, 0.0)),
        successor=((0, 1, 0), (1, 1, 1)),
        ends=((True, False, True), (True, True, True)),
        masked=((False, False, True), (False, False, True)),
    )
    _, found = _choices(subject, table, {0: 0}, gamma=gamma, updates=60)
    if found[0] != 0:
        evidence = "the agent refuses -1 now for -2 a step later, where only a masked choice seems better"
        yield "mask-ignored-in-target", evidence


def check_entropy(subject: Subject) -> Found:
    """The entropy bonus raises the entropy of the policy."""
    subject.require_kind("discrete")
    setting = next((name for name in ("entropy_coef", "temperature") if subject.has(name)), None)
    if setting is None:
        raise NotApplicable("the algorithm has no setting entropy_coef or temperature")
    world = TableWorld(Table(((0.5, 0.5), (0.5, 0.5))))
    settings = {setting: 1.0, "normalize_advantage": False}
    trial = train(subject, world, lambda trial: False, updates=15, **settings)
    timestep = world.first_timestep()
    drawn = torch.stack([world.choice(trial.act(timestep, "sample", seed))[:, 0] for seed in range(60)]).float()
    most_likely = float(torch.maximum(drawn.mean(0), 1 - drawn.mean(0)).mean())
    if most_likely > 0.85:
        found = f"with algo.{setting}=1 and equal rewards, the most likely choice has probability {most_likely:.2f}"
        yield "entropy-sign", f"{found}, expected near 0.5"


@final
class RecallWorld(World):
    """The world of probe/memory with the cue in the environment's state, for critics that remember nothing."""

    def __init__(self) -> None:
        self._probe = MemoryProbe(MemoryConfig(delay=1, cues=2))
        self.spec = replace(self._probe.spec, state_sizes={"global": 3})
        self.reset_noise_size = self._probe.reset_noise_size

    def reset(self, noise: Tensor) -> State:
        return self._probe.reset(noise)

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        return self._probe.step(state, action, noise)

    def observe(self, state: State) -> Observation:
        features = (state["cue"] == 0, state["cue"] == 1, state["step"] > 0)
        return replace(self._probe.observe(state), state={"global": torch.stack(features, -1).float()})

    def render(self, state: State, size: int) -> np.ndarray:
        return self._probe.render(state, size)


def check_recall(subject: Subject) -> Found:
    """A recurrent policy learns to remember an observation (probe/memory)."""
    subject.require_kind("discrete")
    if not subject.cls.capabilities.rnn or not subject.has("rnn"):
        raise NotApplicable("the algorithm has no setting rnn, or does not support it (Capabilities.rnn)")

    def solved(trial: Trial) -> bool:
        return _final_reward(trial.collect()) > 0.75

    settings: dict[str, Any] = {"rnn": "gru", "epsilon_decay_steps": 600, "rollout_length": 9}
    if getattr(subject.params, "critic", "own") != "own":
        settings["critic"] = "state"
    trial = train(subject, RecallWorld(), solved, **settings)
    found = _final_reward(trial.collect())
    if found <= 0.6:
        yield "recall", f"probe/memory: mean return {found:.2f}, expected near 1"


def _final_reward(rollout: Rollout) -> float:
    """Returns the mean reward of the steps that end an episode."""
    return float(rollout.reward[rollout.terminated].mean())
