"""SEAC: agents learn from the experience of all agents, weighted by the ratio of their policies."""

from dataclasses import replace
from math import log

import pytest
import torch

from algo_worlds import Everything, Probe, observe_ones, observe_x, zero_reward
from coterie.algos.seac import SharedBatch, seac_loss
from coterie.core.tree import tree_leaves, tree_map
from coterie.functional.returns import agent_rewards, bootstrap_masks
from learners import collect_rollout, ppo_learner, seac_learner, targets_of


def observe_agents(x, age):
    """Each of three agents observes another number."""
    return torch.stack([x + age, x - age, 2 * x], 1).unsqueeze(-1)


def batch_of(log_prob, advantage, target, own, valid=None):
    rows = torch.tensor(target).unsqueeze(-1)
    none = dict.fromkeys(("first", "critic_first", "state"))
    data = {"obs": {}, "action_mask": {}, "action": {}, "value": torch.zeros_like(rows), "target": rows}
    flags = {
        "own": torch.tensor(own),
        "others": ~torch.tensor(own),
        **dict.fromkeys(("valid", "critic_valid"), None if valid is None else torch.tensor(valid)),
    }
    return SharedBatch(**data, **none, **flags, log_prob=torch.tensor(log_prob), advantage=torch.tensor(advantage))


LOSS = {"num_others": 1.0, "clip_eps": 0.2, "value_clip_eps": None, "huber_delta": None}


def test_seac_loss_of_literal_numbers():
    """Two agents, a timestep of their own and one of the other. Agent 0 would have taken the other's action with
    probability 0.2 where the other had 0.4, so its weight is 0.5; agent 1 0.6 where the other had 0.3: 2.
    """
    old = [[log(0.5), log(0.5)], [log(0.4), log(0.3)]]
    now = torch.tensor([[log(0.5), log(0.5)], [log(0.2), log(0.6)]], requires_grad=True)
    batch = batch_of(old, [[1.0, -2.0], [3.0, 4.0]], [[1.0, 2.0], [4.0, 6.0]], [[True, True], [False, False]])
    value = torch.tensor([[[0.0], [0.0]], [[2.0], [3.0]]])
    entropy = torch.tensor([[0.7, 0.5], [9.0, 9.0]])
    terms = seac_loss(now, entropy, value, batch, sharing_coef=1.0, **LOSS)
    own = -(1.0 - 2.0) / 2  # ratios of 1
    others = (-0.5 * log(0.2) * 3 - 2 * log(0.6) * 4) / 2
    assert terms.policy.item() == pytest.approx(own + others, rel=1e-5)
    assert terms.value.item() == pytest.approx((0.5 + 2.0) / 2 + (0.5 * 2.0 + 2 * 4.5) / 2, rel=1e-5)
    assert terms.entropy.item() == pytest.approx(0.6)
    assert terms.kl.item() == pytest.approx(0, abs=1e-6)
    terms.policy.backward()
    # The gradient of -w log pi A is -w A, as the weight has none; half of it, since means are over two agents.
    torch.testing.assert_close(now.grad, torch.tensor([[-0.5, 1.0], [-0.75, -4.0]]))
    half = seac_loss(now, entropy, value, batch, sharing_coef=0.5, **LOSS)
    assert half.policy.item() == pytest.approx(own + others / 2, rel=1e-5)
    assert half.value.item() == pytest.approx(1.25 + 2.5, rel=1e-5)


@pytest.mark.parametrize("old", [-40.0, 60.0])
def test_weights_of_actions_with_tiny_or_huge_densities_are_ratios(old):
    """Actions of many components, or of narrow Gaussians: the agents' densities differ by a factor of 1, and of 2."""
    batch = batch_of(
        [[0.0, 0.0], [old, old]], [[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [2.0, 2.0]], [[True] * 2, [False] * 2]
    )
    now = torch.tensor([[0.0, 0.0], [old, old + log(2)]], requires_grad=True)
    terms = seac_loss(now, torch.zeros(2, 2), torch.zeros(2, 2, 1), batch, sharing_coef=1.0, **LOSS)
    assert terms.value.item() == pytest.approx((2 + 2 * 2) / 2, rel=1e-5)
    terms.policy.backward()
    torch.testing.assert_close(now.grad[1], torch.tensor([-0.5, -1.0]))


def test_entries_that_are_not_valid_do_not_reach_the_loss():
    old, now = [[log(0.5), -1e30], [log(0.4), 1e30]], torch.tensor([[log(0.5), 1e30], [log(0.2), -1e30]])
    own, valid = [[True, True], [False, False]], [[True, False], [True, False]]
    batch = batch_of(old, [[1.0, 1e30], [3.0, 1e30]], [[1.0, 9.0], [4.0, 9.0]], own, valid)
    terms = seac_loss(now, torch.ones(2, 2), torch.zeros(2, 2, 1), batch, sharing_coef=1.0, **LOSS)
    assert terms.policy.item() == pytest.approx(-1.0 - 0.5 * log(0.2) * 3, rel=1e-5)
    assert terms.value.item() == pytest.approx(0.5 + 0.5 * 8.0, rel=1e-5)


def test_every_agent_reads_the_timesteps_of_every_agent():
    world = Probe(observe_agents, zero_reward, n=3, length=4, start=lambda noise: noise[:, 0])
    algorithm, collector = seac_learner(world, 2)
    rollout = collect_rollout(algorithm, collector)
    numbers = torch.arange(12 * 2 * 3).view(12, 2, 3).float()
    rollout = replace(rollout, reward=numbers, extras={"log_prob": numbers})
    shared = algorithm.shared(rollout)
    for s in range(3):
        envs = slice(2 * s, 2 * s + 2)
        for i in range(3):
            of = (i + s) % 3
            assert shared.reward[:, envs, i].equal(numbers[..., of])
            assert shared.extras["log_prob"][:, envs, i].equal(numbers[..., of])
            assert shared.obs["agent"][:, envs, i].equal(rollout.obs["agent"][:, :, of])
            assert shared.action["agent"].discrete[:, envs, i].equal(rollout.action["agent"].discrete[:, :, of])
        assert shared.episode_truncated[:, envs].equal(rollout.episode_truncated)


def test_without_sharing_it_is_independent_actor_critic():
    world = Probe(observe_x, lambda x, age, d, c: d.float(), n=2, length=4, start=lambda noise: noise[:, 0])
    same = {"normalize_advantage": False, "normalize_value": False, "epochs": 1, "lr": 1e-2, "share_params": "none"}
    found = []
    for build, more in ((ppo_learner, {}), (seac_learner, {"sharing_coef": 0.0}), (seac_learner, {})):
        algorithm, collector = build(world, 4, **same | more)
        for _ in range(3):
            algorithm.update(collect_rollout(algorithm, collector), 0.0)
        found.append([x for x in tree_leaves(algorithm.policy.state_dict()) if x.is_floating_point()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[0], found[1], strict=True))
    assert not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(found[0], found[2], strict=True))


def test_an_agent_learns_from_what_only_another_one_does():
    """Agent 0's own actions earn nothing, those of agent 1 earn 1 for choice 1. Only sharing teaches agent 0 that."""
    world = Probe(observe_ones, lambda x, age, d, c: torch.stack([0 * d[:, 0], d[:, 1]], 1).float(), n=2, length=1)
    for coef, learns in ((1.0, True), (0.0, False)):
        quick = {"rollout_length": 8, "lr": 1e-2, "epochs": 1, "entropy_coef": 0.0, "normalize_advantage": False}
        algorithm, collector = seac_learner(world, 32, sharing_coef=coef, **quick)
        for _ in range(25):
            rollout = collect_rollout(algorithm, collector)
            algorithm.update(rollout, 0.0)
        share = rollout.action["agent"].discrete[rollout.acted[:-1]].float().mean(0).flatten()
        assert share[1] > 0.8
        assert (share[0] > 0.7) == learns


def test_hidden_states_on_the_timesteps_of_others_continue_in_the_next_rollout():
    """One rollout of 8 timesteps leaves the hidden states that two of 4 leave."""
    world = Probe(observe_agents, zero_reward, n=3, length=20, start=lambda noise: noise[:, 0])
    states = []
    for length in (8, 4):
        algorithm, collector = seac_learner(world, 3, rnn="gru", rollout_length=length, lr=1e-9, num_minibatches=1)
        for _ in range(8 // length):
            algorithm.update(collect_rollout(algorithm, collector), 0.0)
        states.append(algorithm._actor_state["h"])
    torch.testing.assert_close(*states, atol=1e-4, rtol=0)
    assert not torch.allclose(states[0][:3], states[0][3:6])


def test_agents_learn_from_those_of_their_role():
    """Two guards learn from each other, and the scout from itself alone."""
    algorithm, collector = seac_learner(Everything("discrete", 0.0), 3)
    rollout = collect_rollout(algorithm, collector)
    shared = algorithm.shared(rollout)
    sizes = [role.n for role in algorithm.team.roles]
    assert (len(sizes), shared.num_envs) == (2, 3 * max(sizes))
    batch = targets_of(algorithm, shared, as_sequences=True).batch
    start = 0
    for role in algorithm.team.roles:
        for i in range(role.n):
            assert batch.own[:, :3, start + i].all()
            assert not batch.others[:, :3, start + i].any()
            for s in range(1, max(sizes)):
                envs = slice(3 * s, 3 * s + 3)
                assert not batch.own[:, envs, start + i].any()
                assert batch.others[:, envs, start + i].all() == (s < role.n)
                assert shared.alive[:, envs, start + i].any() == (s < role.n)
                of = (i + s) % role.n
                assert shared.obs[role.name][:, envs, i].equal(rollout.obs[role.name][:, :, of])
                if s < role.n:
                    assert shared.reward[:, envs, start + i].equal(
                        agent_rewards(rollout, algorithm._membership, True, False)[..., start + of]
                    )
        start += role.n


def slot(by_role, role, inside, of):
    """Returns what belongs to a role with that of its agent `of` in the place of its agent `inside`."""

    def moved(x):
        places = list(range(x.shape[2]))
        places[inside] = of
        return x[:, :, places]

    return by_role | {role: tree_map(moved, by_role[role])}


@pytest.mark.parametrize("groups", [False, True])
def test_an_update_is_that_of_loops_over_pairs_of_agents(groups):
    """Agent i evaluates the timesteps of agent k with k's observations, masks, actions, rewards and ends. Returns with
    rewards of the group go on after k's death, and only i = k learns values there.
    """
    settings = {"epochs": 1, "num_minibatches": 1, "sharing_coef": 0.7, "normalize_obs": True, "gamma": 0.9}
    settings |= {"normalize_value": False, "normalize_advantage": False, "value_clip_eps": None, "huber_delta": None}
    algorithm, collector = seac_learner(
        Everything("discrete", 0.0, groups=groups), 6, lr=1e-2, gae_lambda=0.8, bootstrap_at_limit=True, **settings
    )
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout = collect_rollout(algorithm, collector)
    obs, state = algorithm.policy.obs_normalizer.of_rollout(rollout), algorithm._state(rollout.state)
    masks = {name: x[:-1] for name, x in rollout.action_mask.items()}
    acts = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    learns = acts.any(-1, keepdim=True).expand_as(acts) if groups else acts
    ends = bootstrap_masks(rollout, groups, True)
    terms, errors = {True: [], False: []}, {True: [], False: []}
    for role, i, k in (("guard", 0, 0), ("guard", 1, 1), ("scout", 2, 2), ("guard", 0, 1), ("guard", 1, 0)):
        start = 2 if role == "scout" else 0
        seen = [slot(x, role, i - start, k - start) for x in (obs, masks, rollout.action)]
        with torch.no_grad():
            now = {name: x[:-1] for name, x in seen[0].items()}
            log_prob, entropy = (
                x[..., i] for x in algorithm.policy.actor.evaluate(now, *seen[1:], first=None, hidden_state={})
            )
            value = algorithm.critic(seen[0], state, None, {})[0][..., i, 0]
        reward, (terminated, boundary) = (rollout.reward + rollout.group_reward)[..., k], (x[..., k] for x in ends)
        advantage, later = torch.zeros(12, 6), torch.zeros(6)
        for t in reversed(range(12)):
            delta = reward[t] + 0.9 * value[t + 1] * ~terminated[t] - value[t]
            later = advantage[t] = delta + 0.9 * 0.8 * later * ~boundary[t]
        weight = (log_prob - rollout.extras["log_prob"][..., k]).exp()
        policy = -weight * advantage * (1 if i == k else log_prob)
        error = 0.5 * advantage.square() * (1 if i == k else weight)
        terms[i == k].append(torch.stack([policy, entropy])[:, acts[..., k]])
        errors[i == k].append(error[(learns if i == k else acts)[..., k]])
    own, others = (torch.cat(terms[x], -1).mean(-1) for x in (True, False))
    own_error, others_error = (torch.cat(errors[x]).mean() for x in (True, False))
    metrics, share = algorithm.update(rollout, 0.0), 0.7 * 2 / 3
    assert metrics["loss/policy"] == pytest.approx((own[0] + share * others[0]).item(), rel=1e-4)
    assert metrics["loss/value"] == pytest.approx((own_error + share * others_error).item(), rel=1e-4)
    assert metrics["policy/entropy"] == pytest.approx(own[1].item(), rel=1e-4)
