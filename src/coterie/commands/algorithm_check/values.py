"""Checks of value estimates in worlds whose values are exactly known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from coterie.algos.algorithm import ValueEstimator
from coterie.commands.algorithm_check.learning import action_kind, gamma_of, train
from coterie.commands.algorithm_check.structural import Found
from coterie.commands.algorithm_check.subject import NotApplicable, Subject, Trial, called
from coterie.commands.algorithm_check.table_world import Table, TableWorld
from coterie.core.tree import tree_map
from coterie.core.types import Timestep
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
from coterie.envs.worlds.world import World

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
        raise NotApplicable("the algorithm has no value of a timestep (coterie.algos.algorithm.ValueEstimator)")
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
    world = TableWorld(Table(rewards, ((2, 2), (2, 2), (2, 2)), terminates, limit=1), action_kind(subject))
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
