"""Checks that compare the bits of a few updates and need no learning.

If data that must not matter is changed, the policy has to end with the same bits. Data that matters has to change them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.checks import global_generators
from coterie.checks.algorithm.subject import Found, Leaf, Recording, Subject, Trial, called, leaves, same
from coterie.checks.algorithm.worlds import ShortEpisodes
from coterie.checks.findings import Skipped
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Rollout

KINDS = ("discrete", "continuous", "multi_discrete", "hybrid")
KINDS_WITH_NOISE = ("hybrid", "continuous", "discrete", "multi_discrete")
"""Kinds of actions in the order in which updates are likely to draw random numbers for them."""


def _world(subject: Subject, kinds: tuple[str, ...] = KINDS, **options: Any) -> ShortEpisodes:
    return ShortEpisodes(subject.require_kind(*kinds), subject.agents, **options)


def check_updates(subject: Subject) -> Found:
    """Metrics and weights are finite, and updates change the policy."""
    recording = Recording(subject, _world(subject))
    for k, metrics in enumerate(recording.metrics):
        for name, value in metrics.items():
            if not isinstance(value, int | float) or not np.isfinite(value):
                yield "non-finite", f"update {k + 1} returned {name}={value!r}"
                return
    if not all(bool(x.isfinite().all()) for x in recording.bits if x.is_floating_point()):
        yield "non-finite", f"the policy has weights that are not finite after {len(recording.rollouts)} updates"
    elif subject.capabilities.learns and same(recording.before, recording.weights):
        yield "policy-unchanged", f"the policy has the same weights after {len(recording.rollouts)} updates as before"


def check_determinism(subject: Subject) -> Found:
    """The same seed gives the same bits, whatever the global generators are."""
    results, generators = [], []
    for seed in (1, 2):
        with global_generators.seeded(seed), global_generators.watched() as names:
            recording = Recording(subject, _world(subject, KINDS_WITH_NOISE), num_minibatches=2)
        results.append(recording.bits)
        generators.append(", ".join(names))
    drawn = generators[0]
    if not same(*results):
        source = f"; the global generator of {drawn} was drawn from" if drawn else ""
        yield "unseeded-randomness", f"two trainings with the same seed end with different weights{source}"
    elif drawn:
        yield "unseeded-randomness", f"the global generator of {drawn} was drawn from or seeded"
    elif recording.before and same(recording.before, recording.trial(seed=1).weights()):
        yield "seed-ignored", "the initial weights of the policy are equal for seeds 0 and 1"


def check_isolation(subject: Subject) -> Found:
    """Training of one instance does not change another one."""
    recording = Recording(subject, _world(subject))
    mine, other = recording.trial(), recording.trial(seed=1)
    for rollout in recording.rollouts:
        other.update(with_reward(rollout, torch.ones_like(rollout.acted), -3.0))
        mine.update(rollout)
    if not same(mine.bits(), recording.bits):
        yield "shared-state", "an instance ends with other weights if a second instance is trained at the same time"


def check_resume(subject: Subject) -> Found:
    """A learner that is saved and loaded between updates continues bit for bit."""
    recording = Recording(subject, _world(subject, KINDS_WITH_NOISE), updates=4, num_minibatches=2)
    whole = recording.trial()
    for rollout in recording.rollouts[:2]:
        whole.update(rollout)
    state = copy.deepcopy(called("state_dict", whole.algorithm.state_dict))
    restored = recording.trial()
    called("load_state_dict", lambda: restored.algorithm.load_state_dict(copy.deepcopy(state)))
    expected, found = leaves(whole.algorithm), leaves(restored.algorithm)
    metrics = [[trial.update(rollout) for rollout in recording.rollouts[2:]] for trial in (whole, restored)]
    if same(whole.bits(), restored.bits()) and metrics[0] == metrics[1]:
        return
    yield _missing_part({path: x for path, x in expected.items() if x != found.get(path) and "grad" not in path})


def _missing_part(lost: dict[str, Leaf]) -> tuple[str, str]:
    """Returns the mistake of a checkpoint after which attributes differ, given their right values by path."""
    groups = {
        "generator-not-saved": [path for path, x in lost.items() if x.kind == "generator"],
        "state-not-saved": [path for path, x in lost.items() if x.kind == "other" and isinstance(x.value, Tensor)],
        "optimizer-not-saved": [path for path, x in lost.items() if x.kind == "optimizer"],
    }
    mistake = next((name for name, group in groups.items() if group), "state-not-saved")
    named = groups[mistake] or list(lost)
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    which = f"; after loading, these differ: {', '.join(named[:3])}{more}" if named else ""
    return mistake, f"a restored learner ends with other weights or metrics{which}"


def check_masks(subject: Subject) -> Found:
    """Masked choices are never taken, and updates use the masks."""
    kind = subject.require_kind("discrete", "multi_discrete", "hybrid")
    if not subject.capabilities.masks:
        raise Skipped("the algorithm does not support masks (Capabilities.masks)")
    recording = Recording(subject, ShortEpisodes(kind, subject.agents, masks=True))
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
    if subject.capabilities.learns and same(recording.bits, recording.replay(with_all_choices)):
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
    subject.require_learning()
    capabilities = subject.capabilities
    if not capabilities.dying_agents or not capabilities.multi_agent:
        raise Skipped("the algorithm does not support agents that die (Capabilities.dying_agents)")
    recording = Recording(subject, _world(subject, length=4, dying=True))

    def changed(rollout: Rollout) -> Rollout:
        dead = ~rollout.alive[:-1].any(-1, keepdim=True).expand(rollout.reward.shape)
        extras = {name: torch.where(dead, 1.5 + x, x) for name, x in rollout.extras.items() if x.ndim == 3}
        return replace(with_action(rollout, dead), extras=rollout.extras | extras)

    if not same(recording.bits, recording.replay(changed)):
        dead = sum(int((~r.alive[:-1].any(-1) & r.acted[:-1]).sum()) for r in recording.rollouts)
        yield (
            "dead-agents-trained",
            f"other actions in the {dead} timesteps without living agents lead to other weights",
        )


def check_episode_ends(subject: Subject) -> Found:
    """Returns end at termination, bootstrap at truncation, and do not reach into other episodes."""
    subject.require_learning()
    recording = Recording(subject, _world(subject))
    n = recording.rollouts[0].reward.shape[-1]
    everyone: Callable[[Tensor], Tensor] = lambda places: places[:-1, :, None].expand(-1, -1, n)  # noqa: E731
    tests: dict[str, Change] = {
        "observations": lambda r: with_obs(r, ~r.acted),
        "actions": lambda r: with_action(r, everyone(~r.acted)),
        "rewards": lambda r: with_reward(r, ~r.acted),
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
    recording = Recording(subject, _world(subject, truncates=True))
    if same(recording.bits, recording.replay(lambda r: with_obs(r, ~r.acted))):
        evidence = "other observations at the timestep after a time limit lead to the same weights"
        yield "truncation-as-termination", evidence
    recording = Recording(subject, _world(subject, truncates=True), change=lambda r: unused(r, after_final(r)))
    if not same(recording.bits, recording.replay(lambda r: with_reward(r, after_final(r)))):
        yield "advantage-leaks", "other rewards in the episode after a time limit lead to other weights"


def check_hidden_state(subject: Subject) -> Found:
    """The hidden state is reset at the first timestep of an episode, in acting and in updates."""
    if not subject.capabilities.rnn or not subject.has("rnn"):
        raise Skipped("the algorithm has no setting rnn, or does not support it (Capabilities.rnn)")
    settings: dict[str, Any] = {"rnn": "gru"}
    trial = Recording(subject, _world(subject), updates=1, **settings).trial()
    hidden_state = trial.algorithm.policy.initial_hidden_state(8)
    if not hidden_state:
        raise Skipped("the policy has no hidden state")
    if _depends_on_hidden_state(trial):
        yield "hidden-state-kept", "at a first timestep, the policy's outputs depend on the hidden state before it"
    if not subject.capabilities.learns:
        return
    past: Change = lambda r: unused(r, before_final(r))  # noqa: E731
    recording = Recording(subject, _world(subject), change=past, of_first=True, **settings)
    other = recording.replay(lambda r: with_obs(r, before_final(r)), of_first=True)
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


# ------------------------------------------------------------------------------------------------ changed rollouts


Change = Callable[[Rollout], Rollout]


def after_final(rollout: Rollout) -> Tensor:
    """Returns [T + 1, B] bool, True after the first final timestep of each environment."""
    ended = (~rollout.acted).cumsum(0) > 0
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def before_final(rollout: Rollout) -> Tensor:
    """Returns [T + 1, B] bool, True until the first final timestep of each environment, which is included."""
    return ~after_final(rollout)


def unused(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout as if nobody acted at `places` [T + 1, B]: nothing there is to be learned from."""
    keep = ~places
    steps = keep[:-1]
    return replace(
        rollout,
        acted=rollout.acted & keep,
        reward=rollout.reward * steps[..., None],
        group_reward=rollout.group_reward * steps[..., None],
        terminated=rollout.terminated & steps[..., None],
        truncated=rollout.truncated & steps[..., None],
        episode_terminated=rollout.episode_terminated & steps,
        episode_truncated=rollout.episode_truncated & steps,
    )


def with_reward(rollout: Rollout, places: Tensor, value: float = 9.0) -> Rollout:
    """Returns the rollout with other rewards at `places` [T + 1, B]."""
    return replace(rollout, reward=torch.where(places[:-1, :, None], value, rollout.reward))


def with_obs(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout with other observations and states at `places` [T + 1, B]."""

    def other(x: Tensor) -> Tensor:
        return torch.where(places.view(*places.shape, *[1] * (x.ndim - 2)), 1.5 - x, x)

    return replace(rollout, obs=tree_map(other, rollout.obs), state=tree_map(other, rollout.state))


def with_action(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout with other actions at `places` [T, B, N], for a team of one role."""
    action: dict[str, Any] = {}
    for role, own in rollout.action.items():
        discrete, continuous = own.discrete, own.continuous
        if discrete is not None:
            discrete = torch.where(places[..., None], (discrete == 0).long(), discrete)
        if continuous is not None:
            continuous = torch.where(places[..., None], 0.5 - 0.5 * continuous, continuous)
        action[role] = replace(own, discrete=discrete, continuous=continuous)
    return replace(rollout, action=action)


def with_all_choices(rollout: Rollout) -> Rollout:
    """Returns the rollout with all choices available."""
    masks: dict[str, Tree] = {name: torch.ones_like(mask) for name, mask in rollout.action_mask.items()}
    return replace(rollout, action_mask=masks)
