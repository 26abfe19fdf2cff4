"""Mistakes found in public code: each test fails for a family of algorithms that makes the mistake."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of, observe_x, observe_zeros, zero_reward
from coterie.algos import sequences
from coterie.core.tree import tree_leaves, tree_map
from coterie.training.collector import Collector
from families import FAMILIES, GRU, PER_AGENT, make_learner, q_learner_of_world
from learners import (
    collect_rollout,
    coma_learner,
    ddpg_learner,
    happo_learner,
    poca_learner,
    ppo_learner,
    pqn_learner,
    sac_learner,
)
from preset_learners import preset_learner

# --------------------------------------------------------------------------- assignment to environments and agents


def differing_entries(one, other):
    """Returns the indices (timestep, environment, agent) of entries that differ."""
    return {tuple(place) for place in (one != other).nonzero().tolist()}


@pytest.mark.parametrize("name", FAMILIES)
def test_flags_rewards_and_observations_only_change_the_targets_of_their_own_environment_and_agents(name):
    """Flattening axes in different orders would mix three environments of two agents. An agent's next observation,
    reward or termination changes its own target, or its team's, and no other.
    """
    independent = name in PER_AGENT
    world = Probe(observe_x, zero_reward, n=2, length=9, start=lambda noise: noise[:, 0])
    settings = {"rnn": "none"} if name not in {"ppo", "mappo", "poca", "coma"} else {}
    algorithm, collector, targets = make_learner(name, world, 3, rollout_length=1, **settings)
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        plain = targets(algorithm, rollout)
        own, team = {(0, 1, 0)}, {(0, 1, 0), (0, 1, 1)}
        obs = rollout.obs["agent"].clone()
        obs[1, 1, 0] += 5
        assert differing_entries(plain, targets(algorithm, replace(rollout, obs={"agent": obs}))) == (
            own if independent else team
        )
        reward = rollout.reward.clone()
        reward[0, 1, 0] += 5
        shared = name in {
            "vdn",
            "pqn_vdn",
            "vdac",
            "poca",
            "coma",
            "happo",
            "hatrpo",
            "hasac",
        }  # the other families learn from individual rewards
        found = differing_entries(plain, targets(algorithm, replace(rollout, reward=reward)))
        assert found == (team if shared else own)
        terminated = rollout.terminated.clone()
        terminated[0, 1, 0 if independent else slice(None)] = True
        found = targets(algorithm, replace(rollout, terminated=terminated))
        assert differing_entries(plain, found) == (own if independent else team)
        assert not found[0, 1, 0 if independent else slice(None)].any()


def weights(algorithm):
    """Returns the state that learning changes, without replayed data and hidden states."""
    state = algorithm.state_dict()
    parts = [part for key, part in state.items() if key not in {"buffer", "hidden_state"} and "optimi" not in key]
    return [x.clone() for x in tree_leaves(parts) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


PRESETS = (
    *("mappo", "happo", "hatrpo", "magpo", "seac", "pac", "poca", "coma", "qmix", "wqmix", "pqn_qmix", "maddpg"),
    *("masac", "hasac"),
)
"""Every class of learners with a loss of its own."""


def poisoned(rollout, places, actions=True, rewards=True):
    """Returns the rollout with rewards and extras of 1e6, and the first choice, at `places` [T, B, N]."""

    def poisoned_action(action, where):
        numbers, choices = action.continuous, action.discrete
        where = where.unsqueeze(-1)
        return replace(
            action,
            continuous=None if numbers is None else torch.where(where, 1e6, numbers),
            discrete=None if choices is None else torch.where(where, 0, choices),
        )

    start, action = 0, dict(rollout.action)
    for role, x in rollout.action.items() if actions else ():
        n = (x.discrete if x.discrete is not None else x.continuous).shape[-2]
        action[role] = poisoned_action(x, places[..., start : start + n])
        start += n
    extras = {name: torch.where(places, 1e6, x) for name, x in rollout.extras.items()}
    reward = torch.where(places, 1e6, rollout.reward) if rewards else rollout.reward
    return replace(rollout, reward=reward, action=action, extras=extras)


@pytest.mark.parametrize("name", PRESETS)
def test_the_reward_of_a_terminal_step_changes_the_critic(name):
    """Every step is terminal. If the loss masked terminal steps, the critic would not depend on the reward."""
    found = []
    for scale in (0.0, 1.0):
        world = Probe(observe_x, lambda x, age, d, c, scale=scale: scale * x.view(-1, 1), n=2)
        algorithm = preset_learner(name, env_of(world, 16), "none")
        collector = Collector(env_of(world, 16), {algorithm.team.name: algorithm.behavior_policy}, seed=0)
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            assert rollout.terminated[rollout.acted[:-1]].all()
            algorithm.update(rollout, 0.0)
        state = algorithm.state_dict()
        found.append(tree_leaves(state["critic"] if "critic" in state else state["module"]))
    assert not same(*found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rnn"), list(zip(PRESETS, itertools.cycle(("none", "gru")))))
def test_actions_and_rewards_of_final_timesteps_do_not_change_weights(name, rnn):
    """The control changes rewards of other timesteps. COMA evaluates its policy at final timesteps, where it bootstraps
    at truncation.
    """
    moved = []
    for where in ("nowhere", "final", "acted"):
        env = env_of(Everything(dead=0.0), 6)
        algorithm = preset_learner(name, env, rnn)
        collector = Collector(env, {algorithm.team.name: algorithm.behavior_policy}, seed=0)
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            final = ~rollout.acted[:-1].unsqueeze(-1).expand_as(rollout.reward)
            assert final.any()
            places = {"nowhere": final & ~final, "final": final, "acted": ~final}[where]
            if where == "acted":
                rollout = replace(rollout, reward=rollout.reward + places)
            else:
                rollout = poisoned(rollout, places, actions=name != "coma")
            algorithm.update(rollout, 0.0)
        moved.append(weights(algorithm))
    nowhere, final, acted = moved
    assert all(x.isfinite().all() for x in final)
    assert same(nowhere, final)
    assert not same(nowhere, acted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ippo", "poca", "iql", "pqn", "ddpg", "sac"])
def test_masks_of_learners_exclude_dead_agents(name):
    """The collector clears the data of dead agents. The test changes it afterwards, so that it depends on the masks of
    the learner. It applies to critics of an agent's own observation, or that know which agents are alive. The control
    changes observations of agents that are alive.
    """
    found = []
    for where in ("nowhere", "dead", "alive"):
        env = env_of(Everything("discrete", dead=0.0, groups=False), 8)
        algorithm = preset_learner(name, env, "none")
        collector = Collector(env, {algorithm.team.name: algorithm.behavior_policy}, 0)
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            alive = ~rollout.alive if where == "alive" else rollout.alive
            assert not alive.all()
            if where != "nowhere":
                obs = {
                    "guard": torch.where(alive[..., :2, None], rollout.obs["guard"], 1e3),
                    "scout": torch.where(alive[..., 2:, None], rollout.obs["scout"], 1e3),
                }
                if where == "dead":  # MA-POCA sums rewards without a mask
                    rollout = poisoned(rollout, ~alive[:-1], rewards=name != "poca")
                rollout = replace(rollout, obs=obs)
            algorithm.update(rollout, 0.0)
        found.append(weights(algorithm))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


# ----------------------------------------------------------------------------------------------- seeds and exploration

ACTING = ("ippo", "poca", "coma", "iql", "qmix", "pqn", "maddpg", "masac")


@pytest.mark.parametrize("name", ACTING)
def test_environments_and_agents_with_equal_observations_explore_independently(name):
    """With three choices and a nearly uniform policy, two agents agree in a third of the environments. With the mistake
    of one draw for all environments, or for all agents, they always agree.
    """
    world = Probe(observe_zeros, zero_reward, n=2, actions=spaces.Discrete(3))
    algorithm = preset_learner(name, env_of(world, 600), "none")
    timestep, policy = env_of(world, 600).reset(), algorithm.policy
    (noise,) = policy.draw_noise(1, 600, torch.Generator().manual_seed(0))
    shares = []
    for mistake in (lambda x: x, lambda x: x[:1].expand_as(x).clone(), lambda x: x[:, :1].expand_as(x).clone()):
        with torch.no_grad():
            action = policy.act(timestep, policy.initial_hidden_state(600), tree_map(mistake, noise), "explore")[0][
                "agent"
            ].discrete
        shares.append(
            [(action[1:] == action[:-1]).float().mean().item(), (action[:, 0] == action[:, 1]).float().mean()]
        )
    assert shares[0] == pytest.approx([1 / 3, 1 / 3], abs=0.06)
    assert shares[1][0] == 1
    assert shares[2][1] == 1


def test_environments_start_differently_and_reproducibly():
    """Within one set of environments, and between sets with different seeds; the control repeats a seed."""
    first = [env_of(Everything(), 8, seed).reset().obs["guard"][:, 0, 0] for seed in (1, 2, 1)]
    assert len(first[0].unique()) == 8
    assert not torch.isin(first[0], first[1]).any()
    assert torch.equal(first[0], first[2])


# ------------------------------------------------------------------------------------------------------------- resume


REPLAYED = {
    "learning_starts": 200,
    "target_update_interval": 2,
    "priority_alpha": 0.6,
    "buffer_size": 2000,
    "gradient_steps": 2,
}
RESUMED: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (ppo_learner, {"num_minibatches": 2, "entropy_decay": 0.9, "epochs": 2}),
    "happo": (happo_learner, {"num_minibatches": 2, "entropy_decay": 0.9, "epochs": 2}),
    "poca": (poca_learner, {"num_minibatches": 2, "epochs": 2}),
    "coma": (coma_learner, {"num_minibatches": 2, "epsilon_decay_steps": 3000, "target_update_interval": 2}),
    "qmix": (q_learner_of_world, REPLAYED | {"mixer": "qmix", "reward_scale": "rms", "obs_last_action": True}),
    "pqn_qmix": (pqn_learner, {"mixer": "qmix", "reward_scale": "rms", "obs_last_action": True, "num_minibatches": 2}),
    "matd3": (
        ddpg_learner,
        REPLAYED
        | {"critic": "joint", "policy_delay": 2, "twin_critics": True, "batch_size": 8, "tau": 0.5, "lr": 1e-2}
        | {"random_steps": 350, "noise": "ornstein_uhlenbeck", "noise_schedule": "linear", "sequence_start": "rollout"},
    ),
    "masac": (
        sac_learner,
        REPLAYED | {"critic": "joint", "reward_scale": "standardize", "batch_size": 8, "random_steps": 350},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_each_part_of_the_state_is_needed_to_resume(name):
    """With all parts, metrics and weights have the same bits. Each part in turn is left in its initial state:
    optimizers, targets, the replay buffer, counters, statistics, generators.
    """
    build, settings = RESUMED[name]
    settings = settings | {"rnn": "gru", "rnn_size": 8, "normalize_obs": True}
    whole, collector = build(Everything(), 8, **settings)
    for _ in range(3):
        whole.update(collect_rollout(whole, collector), 0.2)
    state = copy.deepcopy(whole.state_dict())
    rollouts = [tree_map(torch.clone, collect_rollout(whole, collector)) for _ in range(2)]

    def continue_training(algorithm):
        metrics = [algorithm.update(rollout, 0.6) for rollout in rollouts]
        return metrics, weights(algorithm)

    metrics, trained = continue_training(whole)
    for forgotten in (None, *state):
        other, _ = build(Everything(), 8, **settings)
        fresh = copy.deepcopy(other.state_dict())
        other.load_state_dict(copy.deepcopy(state | ({} if forgotten is None else {forgotten: fresh[forgotten]})))
        again, again_trained = continue_training(other)
        assert (again == metrics and same(trained, again_trained)) == (forgotten is None), forgotten


# ------------------------------------------------------------------------------------------------------ hidden states


@pytest.mark.parametrize("name", ["ippo", "poca", "coma", "qmix", "pqn", "maddpg", "masac"])
def test_the_hidden_state_is_reset_at_the_first_timestep_of_an_agent_and_only_there(name):
    env = env_of(Everything(dead=0.0), 8)
    policy = preset_learner(name, env, "gru").policy
    timestep, (noise,) = env.reset(), policy.draw_noise(1, 8, torch.Generator().manual_seed(0))
    other_state = {key: torch.ones_like(x) for key, x in policy.initial_hidden_state(8).items()}
    for first in (True, False):
        here = replace(timestep, first=torch.full_like(timestep.first, first))
        with torch.no_grad():
            (_, one, extras), (_, other, other_extras) = (
                policy.act(here, hidden_state, noise, "explore")
                for hidden_state in (policy.initial_hidden_state(8), other_state)
            )
        assert {"h"} <= set(one)
        assert torch.equal(one["h"], other["h"]) == first
        assert all(torch.equal(extras[key], other_extras[key]) for key in extras) or not first


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in {"coma", "pac", "mat", "mat_dec"}])
def test_hidden_states_of_critics_are_reset_between_episodes(name, monkeypatch):
    """Episodes of three steps and a final timestep. Observations of the first one change its own targets and no later
    ones. The control resets one timestep late: in the flag of the collector, and in the resets that centralized critics
    derive from final timesteps.
    """
    on_time = sequences.critic_first

    def late_critic_first(rollout, centralized):
        first = on_time(rollout, centralized)
        return torch.cat([first[:1], first[:-1]]) if centralized else first

    world = Probe(lambda x, age: x.view(-1, 1, 1) + age.view(-1, 1, 1), zero_reward, n=2, length=3)
    settings = GRU | {"rnn_size": 8, FAMILIES[name][3] or "n_step": 0.0 if FAMILIES[name][3] else 1}
    for late in (False, True):
        algorithm, collector, targets = make_learner(name, world, rollout_length=12, **settings)
        rollout, state = collect_rollout(algorithm, collector), copy.deepcopy(algorithm.state_dict())
        if late:
            rollout = replace(rollout, first=torch.cat([rollout.first[:1], rollout.first[:-1]]))
            for module in ("ppo", "poca", "ddpg", "sac", "qlearning"):
                monkeypatch.setattr(f"coterie.algos.{module}.critic_first", late_critic_first, raising=False)
        obs = rollout.obs["agent"].clone()
        obs[:4] -= 3
        found = []
        for variant in (rollout.obs, {"agent": obs}):
            algorithm.load_state_dict(copy.deepcopy(state))
            with torch.no_grad():
                found.append(targets(algorithm, replace(rollout, obs=variant)))
        assert (found[0][:2] != found[1][:2]).any(-1).all()
        later = [x[3:] for x in found]  # the target of a final timestep is the value of the timestep after it
        assert torch.allclose(*later, atol=1e-6) != late
