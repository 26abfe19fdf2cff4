"""Checks that compare the bits of a few updates and need no learning."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.commands.algorithm_check import object_state
from coterie.commands.algorithm_check import structural_world as changes
from coterie.commands.algorithm_check.structural_world import Change, ShortEpisodes
from coterie.commands.algorithm_check.subject import NotApplicable, Recording, Subject, Trial, called, record, same
from coterie.core.types import Rollout
from coterie.envs.contract.consistency_checks import global_rng_states

Found = Iterator[tuple[str, str]]
"""Names of mistakes, each with the evidence."""

KINDS = ("discrete", "continuous", "multi_discrete", "hybrid")
KINDS_WITH_NOISE = ("hybrid", "continuous", "discrete", "multi_discrete")
"""Kinds of actions in the order in which updates are likely to draw random numbers for them."""


def _world(subject: Subject, kinds: tuple[str, ...] = KINDS, **options: Any) -> ShortEpisodes:
    agents = 2 if subject.cls.capabilities.multi_agent else 1
    return ShortEpisodes(subject.require_kind(*kinds), agents, **options)


def require_learning(subject: Subject) -> None:
    """Raises NotApplicable if the algorithm does not improve its policy."""
    if not subject.cls.capabilities.learns:
        raise NotApplicable("the algorithm does not learn (Capabilities.learns)")


def check_updates(subject: Subject) -> Found:
    """Metrics and weights are finite, and updates change the policy."""
    recording = record(subject, _world(subject))
    for k, metrics in enumerate(recording.metrics):
        for name, value in metrics.items():
            if not isinstance(value, int | float) or not np.isfinite(value):
                yield "non-finite", f"update {k + 1} returned {name}={value!r}"
                return
    if not all(bool(x.isfinite().all()) for x in recording.bits if x.is_floating_point()):
        yield "non-finite", f"the policy has weights that are not finite after {len(recording.rollouts)} updates"
    elif subject.cls.capabilities.learns and same(recording.before, recording.bits):
        yield "policy-unchanged", f"the policy has the same bits after {len(recording.rollouts)} updates as before"


def check_determinism(subject: Subject) -> Found:
    """The same seed gives the same bits, whatever the global generators are."""
    results, states = [], []
    for seed in (1, 2):
        with _global_seed(seed):
            before = global_rng_states()
            recording = record(subject, _world(subject, KINDS_WITH_NOISE), num_minibatches=2)
            states.append(
                [name for name, state in global_rng_states().items() if not np.array_equal(state, before[name])]
            )
            results.append(recording.bits)
    drawn = ", ".join(states[0])
    if not same(*results):
        source = f"; the global generator of {drawn} was drawn from" if drawn else ""
        yield "unseeded-randomness", f"two trainings with the same seed end with different weights{source}"
    elif drawn:
        yield "unseeded-randomness", f"the global generator of {drawn} was drawn from or seeded"
    elif recording.before and same(recording.before, recording.trial(seed=1).bits()):
        yield "seed-ignored", "the initial weights of the policy are equal for seeds 0 and 1"


def check_isolation(subject: Subject) -> Found:
    """Training of one instance does not change another one."""
    recording = record(subject, _world(subject))
    mine, other = recording.trial(), recording.trial(seed=1)
    for rollout in recording.rollouts:
        other.update(changes.with_reward(rollout, torch.ones_like(rollout.acted), -3.0))
        mine.update(rollout)
    if not same(mine.bits(), recording.bits):
        yield "shared-state", "an instance ends with other weights if a second instance is trained at the same time"


def check_resume(subject: Subject) -> Found:
    """A learner that is saved and loaded between updates continues bit for bit."""
    recording = record(subject, _world(subject, KINDS_WITH_NOISE), updates=4, num_minibatches=2)
    whole = recording.trial()
    for rollout in recording.rollouts[:2]:
        whole.update(rollout)
    state = copy.deepcopy(called("state_dict", whole.algorithm.state_dict))
    restored = recording.trial()
    called("load_state_dict", lambda: restored.algorithm.load_state_dict(copy.deepcopy(state)))
    expected, found = object_state.leaves(whole.algorithm), object_state.leaves(restored.algorithm)
    metrics = [[trial.update(rollout) for rollout in recording.rollouts[2:]] for trial in (whole, restored)]
    if same(whole.bits(), restored.bits()) and metrics[0] == metrics[1]:
        return
    paths = [path for path in object_state.differences(expected, found) if "grad" not in path]
    yield _missing_part(whole, paths, expected)


def _missing_part(trial: Trial, paths: list[str], values: dict[str, Any]) -> tuple[str, str]:
    """Returns the mistake of a checkpoint after which attributes differ, given their paths and right values."""
    kinds = {path: object_state.kind_of(trial.algorithm, path) for path in paths}
    weights = [path for path in paths if kinds[path] == "other" and isinstance(values[path], Tensor)]
    groups = {
        "generator-not-saved": [path for path in paths if kinds[path] == "generator"],
        "state-not-saved": weights,
        "optimizer-not-saved": [path for path in paths if kinds[path] == "optimizer"],
    }
    mistake = next((name for name, group in groups.items() if group), "state-not-saved")
    named = groups[mistake] or paths
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    which = f"; after loading, these differ: {', '.join(named[:3])}{more}" if named else ""
    return mistake, f"a restored learner ends with other weights or metrics{which}"


def check_masks(subject: Subject) -> Found:
    """Masked choices are never taken, and updates use the masks."""
    kind = subject.require_kind("discrete", "multi_discrete", "hybrid")
    if not subject.cls.capabilities.masks:
        raise NotApplicable("the algorithm does not support masks (Capabilities.masks)")
    agents = 2 if subject.cls.capabilities.multi_agent else 1
    recording = record(subject, ShortEpisodes(kind, agents, masks=True))
    taken, masked = 0, 0
    for rollout in recording.rollouts:
        bad = ~rollout.action_mask["agent"][:-1][..., 0] & rollout.acted[:-1, :, None]
        choices = rollout.action["agent"].discrete
        assert choices is not None
        taken, masked = taken + int((bad & (choices[..., 0] == 0)).sum()), masked + int(bad.sum())
    if taken:
        yield "mask-ignored-in-acting", f"in exploration, a masked choice was taken in {taken} of {masked} timesteps"
        return
    for mode in ("greedy", "sample"):
        taken, masked = _masked_choices(recording, mode)
        if taken:
            yield "mask-ignored-in-acting", f"in mode {mode}, a masked choice was taken in {taken} of {masked} cases"
            return
    if subject.cls.capabilities.learns and same(recording.bits, recording.replay(changes.with_all_choices)):
        yield "mask-ignored-in-update", "updates end with the same weights if all choices are available"


def _masked_choices(recording: Recording, mode: str) -> tuple[int, int]:
    """Returns how often a masked choice is taken at first timesteps, and how often it could be."""
    trial = recording.trial()
    for rollout in recording.rollouts:
        trial.update(rollout)
    timestep = trial.collector.env.reset(1)
    taken, masked = 0, 0
    for seed in range(4):
        choices = trial.act(timestep, mode, seed)["agent"].discrete
        bad = ~timestep.action_mask["agent"][..., 0]
        taken, masked = taken + int((bad & (choices[..., 0] == 0)).sum()), masked + int(bad.sum())
    return taken, masked


def check_dead_agents(subject: Subject) -> Found:
    """Actions of dead agents do not change updates."""
    require_learning(subject)
    capabilities = subject.cls.capabilities
    if not capabilities.dying_agents or not capabilities.multi_agent:
        raise NotApplicable("the algorithm does not support agents that die (Capabilities.dying_agents)")
    recording = record(subject, _world(subject, length=4, dying=True))

    def changed(rollout: Rollout) -> Rollout:
        dead = ~rollout.alive[:-1].any(-1, keepdim=True).expand(rollout.reward.shape)
        extras = {name: torch.where(dead, 1.5 + x, x) for name, x in rollout.extras.items() if x.ndim == 3}
        return replace(changes.with_action(rollout, dead), extras=rollout.extras | extras)

    if not same(recording.bits, recording.replay(changed)):
        dead = sum(int((~r.alive[:-1].any(-1) & r.acted[:-1]).sum()) for r in recording.rollouts)
        yield (
            "dead-agents-trained",
            f"other actions in the {dead} timesteps without living agents lead to other weights",
        )


def check_episode_ends(subject: Subject) -> Found:
    """Returns end at termination, bootstrap at truncation, and do not reach into other episodes."""
    require_learning(subject)
    recording = record(subject, _world(subject))
    n = recording.rollouts[0].reward.shape[-1]
    everyone: Callable[[Tensor], Tensor] = lambda places: places[:-1, :, None].expand(-1, -1, n)  # noqa: E731
    tests: dict[str, Change] = {
        "observations": lambda r: changes.with_obs(r, ~r.acted),
        "actions": lambda r: changes.with_action(r, everyone(~r.acted)),
        "rewards": lambda r: changes.with_reward(r, ~r.acted),
    }
    read = [name for name, change in tests.items() if not same(recording.bits, recording.replay(change))]
    if read:
        evidence = f"other {' and '.join(read)} at the timestep after a termination lead to other weights"
        yield _mistake_at_termination(read), evidence
        if read != ["observations"]:
            return
    yield from _check_truncation(subject)


def _mistake_at_termination(read: list[str]) -> str:
    """Returns the mistake, given the fields of the timestep after a termination that the update reads."""
    if read == ["actions"]:
        return "actions-shifted"
    if read == ["rewards"]:
        return "rewards-shifted"
    return "final-timesteps-learned" if "rewards" in read else "termination-bootstrapped"


def _check_truncation(subject: Subject) -> Found:
    recording = record(subject, _world(subject, truncates=True))
    if same(recording.bits, recording.replay(lambda r: changes.with_obs(r, ~r.acted))):
        evidence = "other observations at the timestep after a time limit lead to the same weights"
        yield "truncation-as-termination", evidence
    recording = record(
        subject, _world(subject, truncates=True), change=lambda r: changes.unused(r, changes.after_final(r))
    )
    if not same(recording.bits, recording.replay(lambda r: changes.with_reward(r, changes.after_final(r)))):
        yield "advantage-leaks", "other rewards in the episode after a time limit lead to other weights"


def check_hidden_state(subject: Subject) -> Found:
    """The hidden state is reset at the first timestep of an episode, in acting and in updates."""
    if not subject.cls.capabilities.rnn or not subject.has("rnn"):
        raise NotApplicable("the algorithm has no setting rnn, or does not support it (Capabilities.rnn)")
    settings: dict[str, Any] = {"rnn": "gru"}
    trial = record(subject, _world(subject), updates=1, **settings).trial()
    hidden_state = trial.algorithm.policy.initial_hidden_state(8)
    if not hidden_state:
        raise NotApplicable("the policy has no hidden state")
    if _depends_on_hidden_state(trial):
        yield "hidden-state-kept", "at a first timestep, the policy's outputs depend on the hidden state before it"
    if not subject.cls.capabilities.learns:
        return
    past: Change = lambda r: changes.unused(r, changes.before_final(r))  # noqa: E731
    recording = record(subject, _world(subject), change=past, of_first=True, **settings)
    other = recording.replay(lambda r: changes.with_obs(r, changes.before_final(r)), of_first=True)
    if not same(recording.bits, other):
        evidence = "other observations in an episode that is not learned from change what is learned in the next one"
        yield "hidden-state-kept-in-update", evidence


def _depends_on_hidden_state(trial: Trial) -> bool:
    policy, timestep = trial.algorithm.policy, trial.collector.env.reset()
    empty = policy.initial_hidden_state(8)
    (noise,) = policy.draw_noise(1, 8, torch.Generator().manual_seed(0))
    outputs = []
    for hidden_state in (empty, {name: torch.ones_like(x) for name, x in empty.items()}):
        with torch.no_grad():
            _, after, extras = called("policy.act", lambda h=hidden_state: policy.act(timestep, h, noise, "explore"))
        outputs.append([*after.values(), *extras.values()])
    return not same(*outputs)


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seeds the global generators, and restores them afterwards."""
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        random.setstate(saved[2])
