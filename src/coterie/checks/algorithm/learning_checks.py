"""Checks that train for a few seconds in worlds with exactly known answers: choices, then values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from coterie.algos.algorithm import ValueEstimator
from coterie.checks.algorithm.subject import Found, Subject, Trial, called, frozen_copies, leaves
from coterie.checks.algorithm.worlds import RecallWorld, Table, TableWorld
from coterie.checks.findings import Skipped
from coterie.core.tree import tree_map
from coterie.core.types import Rollout, Timestep
from coterie.envs.worlds.probe.single_agent import (
    ConstantConfig,
    ConstantProbe,
    DelayedConfig,
    DelayedProbe,
    EndlessConfig,
    EndlessProbe,
    ObservationConfig,
    ObservationProbe,
)
from coterie.envs.worlds.probe.team_probes import AdditiveConfig, AdditiveProbe
from coterie.envs.worlds.world import World

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
    subject.require_learning()
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


def greedy_choices(trial: Trial) -> list[int]:
    """Returns the greedy choice of the first agent in each state of a table."""
    assert isinstance(trial.world, TableWorld)
    return trial.world.choice(trial.act(trial.world.first_timestep()))[:, 0].tolist()


def _choices(subject: Subject, table: Table, expected: dict[int, int], **settings: Any) -> tuple[Trial, list[int]]:
    """Trains in a table until the greedy choices in some states are as expected. Returns the greedy choices."""

    def solved(trial: Trial) -> bool:
        found = greedy_choices(trial)
        return all(found[state] == choice for state, choice in expected.items())

    trial = train(subject, TableWorld(table, subject.require_kind("discrete", "continuous")), solved, **settings)
    return trial, greedy_choices(trial)


def gamma_of(subject: Subject, wanted: float) -> float:
    """Returns the discount of a check: `wanted`, or what the user gave. Skipped without a setting gamma."""
    if not subject.has("gamma"):
        raise Skipped("the algorithm has no setting gamma")
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
    table = Table(((1.0, -1.0), (-1.0, 1.0)) * 4)  # too many states to be right by chance
    world = TableWorld(table, subject.require_kind("discrete", "continuous"), subject.agents)
    expected = torch.tensor([0, 1] * 4)[:, None].expand(-1, subject.agents)

    def choices(trial: Trial) -> Tensor:
        return world.choice(trial.act(world.first_timestep()))

    found = choices(train(subject, world, lambda trial: torch.equal(choices(trial), expected)))
    right = float((found == expected).float().mean())
    if right < 1:
        yield (
            "observation-ignored",
            f"{right:.0%} of greedy choices of {subject.agents} agents in 8 states fit, expected all",
        )


def check_group_reward(subject: Subject) -> Found:
    """Agents learn from a reward of their group (probe/additive)."""
    if not subject.capabilities.multi_agent:
        raise Skipped("the algorithm trains a single agent (Capabilities.multi_agent)")
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
        raise Skipped(f"algo.gamma={gamma} is too close to 0 or 1 to tell discounts apart")
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
    fresh = subject.start(trial.world, num_envs=trial.collector.env.num_envs, **QUICK)
    frozen = frozen_copies(leaves(fresh.algorithm), leaves(trial.algorithm))
    if frozen:
        return "target-network-frozen", f"{evidence}; {frozen[0]} still has its initial values"
    return "not-bootstrapped", evidence


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
        raise Skipped("the algorithm has no setting entropy_coef or temperature")
    world = TableWorld(Table(((0.5, 0.5), (0.5, 0.5))))
    settings = {setting: 1.0, "normalize_advantage": False}
    trial = train(subject, world, lambda trial: False, updates=15, **settings)
    timestep = world.first_timestep()
    drawn = torch.stack([world.choice(trial.act(timestep, "sample", seed))[:, 0] for seed in range(60)]).float()
    most_likely = float(torch.maximum(drawn.mean(0), 1 - drawn.mean(0)).mean())
    if most_likely > 0.85:
        found = f"with algo.{setting}=1 and equal rewards, the most likely choice has probability {most_likely:.2f}"
        yield "entropy-sign", f"{found}, expected near 0.5"


def check_recall(subject: Subject) -> Found:
    """A recurrent policy learns to remember an observation (probe/memory)."""
    subject.require_kind("discrete")
    if not subject.capabilities.rnn or not subject.has("rnn"):
        raise Skipped("the algorithm has no setting rnn, or does not support it (Capabilities.rnn)")

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


# --------------------------------------------------------------------------------------------------------- values

_TOLERANCE = 0.15
"""Largest error of a value, as a fraction of the largest value, at least of 1."""


@dataclass(frozen=True)
class WrongValues:
    """Values of the distinct observations of a world, some of which are wrong.

    Attributes:
        values: Measured value of each observation.
        expected: Exact value of each observation.
        tolerance: Largest difference that passes.
    """

    values: tuple[float, ...]
    expected: tuple[float, ...]
    tolerance: float

    def __str__(self) -> str:
        pairs = [f"{value:.2g}, expected {exact:.2g}" for value, exact in zip(self.values, self.expected, strict=True)]
        return f"value {'; '.join(pairs)}"


def _wrong_values(
    subject: Subject, world: World, exact: Callable[[Tensor], Tensor], gamma: float
) -> WrongValues | None:
    """Trains until the values are exact. Returns the values, or None if they are.

    Args:
        subject: The algorithm.
        world: The world, with one agent.
        exact: Maps observations [M, D] to their exact values [M].
        gamma: Discount.
    """

    def measure(trial: Trial) -> WrongValues | None:
        obs, value = _values(trial)
        expected = exact(obs)
        tolerance = _TOLERANCE * max(1.0, float(expected.abs().max()))
        if float((value - expected).abs().max()) <= tolerance:
            return None
        return WrongValues(tuple(value.tolist()), tuple(expected.tolist()), tolerance)

    trial = train(subject, world, lambda trial: measure(trial) is None, gamma=gamma)
    return measure(trial)


def _values(trial: Trial) -> tuple[Tensor, Tensor]:
    """Returns the distinct observations of a rollout [M, D], and the mean value of each [M]."""
    rollout, estimator = trial.collect(), trial.algorithm
    assert isinstance(estimator, ValueEstimator)
    seen = {entry.name: getattr(rollout, entry.name) for entry in fields(Timestep)}
    timestep = Timestep(**tree_map(lambda x: x[:-1].flatten(0, 1)[rollout.acted[:-1].flatten()], seen))

    def estimate() -> Tensor:
        with torch.no_grad():
            hidden_state = estimator.start_value_estimation(len(timestep.acted))
            return estimator.estimate_value(timestep, hidden_state)[0]

    value = called("estimate_value", estimate)[:, 0]
    (obs,) = timestep.obs.values()
    distinct, index = obs[:, 0].unique(dim=0, return_inverse=True)
    total = torch.zeros(len(distinct)).index_add(0, index, value)
    return distinct.flip(0), (total / index.bincount()).flip(0)  # one-hot vectors in the order of their states


def check_values(subject: Subject) -> Found:
    """Values are exact (probe/constant, probe/observation, probe/delayed, probe/endless)."""
    if not issubclass(subject.cls, ValueEstimator):
        raise Skipped("the algorithm has no value of a timestep (coterie.algos.algorithm.ValueEstimator)")
    gamma = gamma_of(subject, 0.5)
    constant = _wrong_values(subject, ConstantProbe(ConstantConfig(), with_state=True), lambda obs: obs[:, 0], gamma)
    if constant:
        bootstraps = abs(constant.values[0] - 1 / (1 - gamma)) < constant.tolerance
        yield "termination-bootstrapped" if bootstraps else "value-of-reward", f"probe/constant: {constant}"
        return
    seen = _wrong_values(subject, ObservationProbe(ObservationConfig(), with_state=True), lambda obs: obs[:, 0], gamma)
    if seen:
        yield "value-ignores-observation", f"probe/observation: {seen}"
    weights = torch.tensor([gamma, 1.0])
    delayed = _wrong_values(
        subject, DelayedProbe(DelayedConfig(length=2), with_state=True), lambda obs: obs @ weights, gamma
    )
    if delayed:
        value = delayed.values[0]
        mistake = "not-discounted" if value > gamma else "discounted-twice" if value > gamma**3 else "not-bootstrapped"
        yield mistake, f"probe/delayed: {delayed}"
        return
    yield from _check_value_at_limit(subject, gamma)


def _check_value_at_limit(subject: Subject, gamma: float) -> Found:
    """Values of the last timestep before a time limit and before a termination, whose next timestep has value 1."""
    rewards, terminates = ((0.0, 0.0), (0.0, 0.0), (1.0, 1.0)), ((False, False), (True, True), (True, True))
    world = TableWorld(
        Table(rewards, ((2, 2), (2, 2), (2, 2)), terminates, limit=1), subject.require_kind("discrete", "continuous")
    )
    expected = torch.tensor([gamma, 0.0, 1.0])
    error = _wrong_values(subject, world, lambda obs: obs @ expected, gamma)
    if not error:
        endless = EndlessProbe(EndlessConfig(episode_limit=10), with_state=True)
        error = _wrong_values(subject, endless, lambda obs: obs[:, 0] / (1 - gamma), gamma)
        if error:
            yield "truncation-as-termination", f"probe/endless: {error}"
        return
    at_limit, at_end, _ = error.values
    if abs(at_limit - gamma) > error.tolerance:
        found = f"value of the last timestep before a time limit is {at_limit:.2g}, expected {gamma:.2g}"
        yield "truncation-as-termination", found
    if abs(at_end) > error.tolerance:
        found = f"value of the last timestep before a termination is {at_end:.2g}, expected 0"
        yield "termination-bootstrapped", found
