"""Tiny worlds with known answers, learned by every family, and not learned where a mistake is put in.

What is peculiar to a family, and memories, masks, ids and limits: in its own file and in test_mistakes.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algos import test_ddpg, test_qlearning, test_sac
from algos.families import FAMILIES, window_of
from algos.worlds import Probe
from coterie.algos import onpolicy
from coterie.replay import Sample
from coterie.types import Action, tree_map

NUMBER = spaces.Box(-1.0, 1.0, (1,))
CLIPPED = {"horizon": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "value_clip_eps": None}
REPLAYED = {"horizon": 8, "lr": 1e-2, "batch": 64, "updates": 8}
NOISY = REPLAYED | {"tau": 0.1, "noise_std": 0.3, "random_steps": 256}
WARM = REPLAYED | {"tau": 0.1, "updates": 16, "temperature": 0.01, "learn_temperature": False}
QUICK: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ppo": (10, 64, CLIPPED),
    "mappo": (10, 64, CLIPPED | {"critic": "joint"}),
    "poca": (10, 64, CLIPPED),
    "coma": (60, 64, {"horizon": 8, "lr": 1e-2, "epsilon": 0.1, "target_every": 5, "normalise_advantage": True}),
    "iql": (20, 16, REPLAYED | {"target_every": 20, "epsilon_steps": 2000}),
    "ddpg": (24, 32, NOISY),
    "maddpg": (24, 32, NOISY | {"critic": "joint"}),
    "sac": (14, 16, WARM),
    "masac": (14, 16, WARM | {"critic": "joint"}),
}
"""Windows, copies and settings that are enough for the simplest worlds."""
OF_ONE = ("ppo", "poca", "coma", "iql", "ddpg", "sac")


def reaches(name, world, right, windows=0, spoil=None, prepare=None, **settings):
    """Whether a learner gives the right answer, at two looks in a row, before it has had all its windows.

    right: of the learner and a window; spoil: changes what the learner is given of a window; prepare: changes the
    learner before the first.
    """
    most, copies, quick = QUICK[name]
    algorithm, collector = FAMILIES[name][0](world, copies, **{"gamma": 0.9} | quick | settings)
    if prepare is not None:
        prepare(algorithm)
    held = 0
    for k in range(windows or most):
        window = window_of(algorithm, collector)
        algorithm.update(window if spoil is None else spoil(window), 0.5)
        if k % 2:
            held = held + 1 if right(algorithm, window) else 0
        if held == 2:
            return True
    return False


def worth(name, algorithm, window):
    """What the learner says that each step of a window is worth, [T, B, N]: V, or Q of what was done."""
    with torch.no_grad():
        if name in {"ppo", "poca"}:
            mean, scale = algorithm._value_scale()
            value = algorithm._values(window.obs, None if name == "ppo" else window, None)
            return ((value[:-1] if name == "ppo" else value[0][..., 1:, :]) * scale + mean)[..., 0]
        if name == "coma":
            vectors = algorithm._joint.vectors(window.action)
            seen = {role: x[:-1] for role, x in window.obs.items()}
            q, _ = algorithm.critic(seen, None, algorithm._joint.join(vectors), None, None, {})
            return (q * vectors["agent"]).sum(-1)
        if name == "iql":
            return test_qlearning.q_of(algorithm, window)[:-1].gather(-1, window.action["agent"].discrete)[..., 0]
        if name == "sac":
            return test_sac.q_taken(algorithm, window)
        rows = onpolicy.cut(window, 1, {})  # this learner reads the first row of its sequences alone
        batch = algorithm._batch(Sample(rows, torch.arange(rows.copies), torch.ones(rows.copies)))
        q = algorithm._critic_loss(batch, torch.zeros(1, rows.copies, 1))[2]
        return q.unflatten(1, (window.horizon, window.copies))[0]


def done(algorithm, world):
    """What the policy does greedily in the rows of a fresh environment, and what that pays in the mean."""
    taken, _, reward = test_ddpg.acts(algorithm, world, steps=1)
    return taken, reward.mean().item()


def show_nothing(x, age):
    return torch.ones(len(x), 1, 1)


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_age(x, age):
    return age.view(-1, 1, 1)


def pay_one(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


# ----------------------------------------------------------------------------------------------- mistakes to be put in


def without_last_rewards(window):
    """Rewards of steps that end an episode are masked out, as by a mask of 1 - terminated."""
    return replace(window, reward=window.reward.masked_fill(window.terminated, 0.0))


def of_another_copy(window):
    """What is seen is that of the next copy: flattened in another order than what is paid."""
    return replace(window, obs={name: x.roll(1, 1) for name, x in window.obs.items()})


def as_a_cost(window):
    """The sign of the gain is wrong."""
    return replace(window, reward=-window.reward)


def second_reversed(window):
    """The second component of a choice is taken for the other one."""
    discrete = window.action["agent"].discrete
    return replace(window, action={"agent": Action(torch.cat([discrete[..., :1], 1 - discrete[..., 1:]], -1))})


def blind_critic(algorithm):
    """The critic is not given the action: what is done now has no slope."""
    if hasattr(algorithm, "_q"):
        ask = algorithm._q
        nothing = lambda action: tree_map(lambda x: x * 0, action)  # noqa: E731
        algorithm._q = lambda critics, window, rows, action, fresh: ask(
            critics, window, rows, nothing(action), fresh and nothing(fresh)
        )
        return
    for critic in algorithm.critics.children():
        critic.judge = lambda seen, action, judge=critic.judge: judge(seen, tree_map(lambda x: x * 0, action))


# ------------------------------------------------------------------------------------------------ what is worth what


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_constant_reward_is_worth_one(name, mistaken):
    """Every step is the last. The mistake: rewards of last steps are left out."""

    def right(algorithm, window):
        return abs(worth(name, algorithm, window)[window.acted[:-1]].mean().item() - 1) < 0.1

    spoil = without_last_rewards if mistaken else None
    assert reaches(name, Probe(show_nothing, pay_one), right, spoil=spoil) != mistaken


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_value_follows_the_observation(name, mistaken):
    """Who sees 1 is paid 1, who sees 0 pays 1. The mistake: another copy's observation."""

    def right(algorithm, window):
        gap = worth(name, algorithm, window) - (2 * window.obs["agent"][:-1, ..., 0] - 1)
        return gap[window.acted[:-1]].abs().max().item() < 0.25

    world = Probe(show_x, lambda x, age, d, c: (2 * x - 1).view(-1, 1))
    assert reaches(name, world, right, spoil=of_another_copy if mistaken else None) != mistaken


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_value_is_discounted(name, mistaken):
    """Paid in the second step of two, gamma 0.5. The mistake: no discount."""

    def right(algorithm, window):
        found, age = worth(name, algorithm, window), window.obs["agent"][:-1, ..., 0]
        first, last = (found[(age == k) & window.acted[:-1, :, None]].mean().item() for k in (0, 1))
        return abs(first - 0.5) < 0.1 and abs(last - 1) < 0.1

    world = Probe(show_age, lambda x, age, d, c: (age == 1).float().view(-1, 1), length=2)
    assert reaches(name, world, right, gamma=1.0 if mistaken else 0.5) != mistaken


# ------------------------------------------------------------------------------------------------------ what is chosen


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_action_that_pays_is_chosen(name, mistaken):
    """Paid is choice 1. The mistake: the gain has the wrong sign."""
    world = Probe(show_nothing, lambda x, age, d, c: d.float())
    right = lambda algorithm, window: done(algorithm, world)[1] == 1  # noqa: E731
    assert reaches(name, world, right, spoil=as_a_cost if mistaken else None) != mistaken


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_action_that_fits_the_observation_is_chosen(name, mistaken):
    """Paid is the choice that is seen. The mistake: nothing is seen, so that half of the choices are right."""
    world = Probe(show_nothing if mistaken else show_x, lambda x, age, d, c: (d == x.view(-1, 1)).float())
    right = lambda algorithm, window: done(algorithm, world)[1] == 1  # noqa: E731
    assert reaches(name, world, right) != mistaken


class Pairs(Probe):
    """Pays for 2 in the first component of a choice, and for 1 in the second."""

    def __init__(self):
        super().__init__(show_nothing, lambda x, age, d, c: d.float(), actions=spaces.MultiDiscrete([3, 2]))

    def step(self, state, action, noise):
        first, second = action["agent"].discrete.split(1, -1)
        return super().step(state, {"agent": Action((first == 2).long() + (second == 1).long())}, noise)


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_probe_every_component_finds_its_choice(name, mistaken):
    """The mistake: the second component is told the wrong way round."""
    world = Pairs()
    right = lambda algorithm, window: done(algorithm, world)[1] == 2  # noqa: E731
    assert reaches(name, world, right, spoil=second_reversed if mistaken else None) != mistaken


# ------------------------------------------------------------------------------------------------------ numbers chosen

FASTER = {"lr": 3e-3, "critic_lr": 1e-2}
"""A critic that is faster than the actor,"""
STEADY = FASTER | {"hidden": (32, 32), "activation": "relu"}
"""and can bend."""
OPTIMUM = {
    "ppo": ("ppo", 12, {"lr": 2e-3}),
    "ppo, spread of the state": ("ppo", 12, {"lr": 2e-3, "state_std": True}),
    "poca": ("poca", 12, {"lr": 2e-3}),
    "ddpg": ("ddpg", 12, {}),
    "ddpg, drifting noise": ("ddpg", 12, {"noise": "ornstein_uhlenbeck"}),
    "ddpg, td3": ("ddpg", 12, {"twin_critics": True, "policy_delay": 2, "target_noise": 0.2}),
    "sac": ("sac", 10, STEADY),
    "sac, apart": ("sac", 10, STEADY | {"share": "none"}),
}
SUM = {
    "ippo": ("ppo", 12, {}),
    "mappo": ("mappo", 12, {}),
    "poca": ("poca", 12, {"lr": 3e-3}),
    "maddpg": ("maddpg", 36, FASTER),
    "maddpg, all as they act now": ("maddpg", 36, FASTER | {"others": "current"}),
    "sac": ("sac", 24, STEADY),
    "masac": ("masac", 24, STEADY),
}


def cases(table):
    """Every case, and those without a comma, which is to say a variant, with the mistake put in as well."""
    return [(case, False) for case in table] + [(case, True) for case in table if "," not in case]


def mistakes(name):
    """Where a critic leads the actor: it is not given the action; elsewhere the gain has the wrong sign."""
    return {"prepare": blind_critic} if name in {"ddpg", "maddpg", "sac", "masac"} else {"spoil": as_a_cost}


@pytest.mark.parametrize(("case", "mistaken"), cases(OPTIMUM))
def test_probe_continuous_optimum_inside_the_range(case, mistaken):
    """Paid is -(a - 0.4)^2."""
    name, windows, settings = OPTIMUM[case]
    world = Probe(show_nothing, lambda x, age, d, c: -(c[..., 0] - 0.4).square(), actions=NUMBER)
    right = lambda algorithm, window: abs(done(algorithm, world)[0].mean().item() - 0.4) < 0.1  # noqa: E731
    assert reaches(name, world, right, windows, **settings, **mistakes(name) if mistaken else {}) != mistaken


@pytest.mark.parametrize(("case", "mistaken"), cases(SUM))
def test_probe_two_agents_meet_a_sum(case, mistaken):
    """Paid is -(a1 + a2 - 1)^2."""
    name, windows, settings = SUM[case]
    pay = lambda x, age, d, c: -(c[..., 0].sum(1, keepdim=True) - 1).square()  # noqa: E731
    world = Probe(show_nothing, pay, n=2, actions=NUMBER)
    right = lambda algorithm, window: abs(done(algorithm, world)[0][..., 0].sum(-1).mean().item() - 1) < 0.1  # noqa: E731
    assert reaches(name, world, right, windows, **settings, **mistakes(name) if mistaken else {}) != mistaken
