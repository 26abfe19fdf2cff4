"""Pareto-AC: the advantage of an action is its value if the other agents respond best to it."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

import coterie
from algo_worlds import Everything, Probe, observe_ones
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.pac import PAC, PACConfig, Responses, best_response_values, joint_critic_loss
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.functional.returns import present_agents
from coterie.runs.loggers import read
from families import CLIMBING, climbing
from learners import CPU, collect_rollout, pac_learner, targets_of
from loops import by_agent, choices_of, joint_action, n_step, team_steps
from policy_cases import make_team


class Table(torch.nn.Module):
    """A joint-action critic of the Climbing game with the exact values."""

    def given_others(self, obs, state, others, last_joint_action=None):
        return torch.stack([others[..., 0, 3:] @ CLIMBING.T, others[..., 1, :3] @ CLIMBING], -2)


def test_best_responses_are_maxima_over_what_others_can_do():
    q = torch.tensor([[[1.0, 5.0]], [[4.0, 2.0]], [[9.0, 9.0]]])
    everything = torch.ones(3, 1, dtype=torch.bool)
    assert best_response_values(q, everything).tolist() == [[9.0, 9.0]]
    legal = torch.tensor([[True], [True], [False]])
    assert best_response_values(q, legal).tolist() == [[4.0, 5.0]]


def test_joint_critic_loss_of_literal_numbers():
    q = torch.tensor([[[1.0, 7.0], [2.0, 8.0]]], requires_grad=True)
    taken = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    target = torch.tensor([[4.0, 6.0]])
    loss = joint_critic_loss(q, taken, target, None)
    assert loss.item() == (4.5 + 2.0) / 2
    loss.backward()
    assert q.grad.tolist() == [[[-1.5, 0.0], [0.0, 1.0]]]
    assert joint_critic_loss(q, taken, target, torch.tensor([[True, False]])).item() == 4.5


def test_best_responses_of_the_climbing_game():
    """The best payoff of every choice: 11, 7, 6 for the first agent and 11, 7, 5 for the second."""
    algorithm, _ = pac_learner(climbing(), 1)
    responses, alive = algorithm.responses, torch.ones(1, 2, dtype=torch.bool)
    mask = torch.ones(1, 6, dtype=torch.bool)
    assert responses.best(Table(), {}, None, mask, alive).tolist() == [[[11, 7, 6], [11, 7, 5]]]
    mask[0, 3] = False  # the second agent cannot choose 0: the column of 11 is gone for the first one
    assert responses.best(Table(), {}, None, mask, alive).tolist() == [[[0, 7, 6], [11, 7, 5]]]


def test_of_responses_of_equal_value_the_likely_one_is_expected():
    """A game that pays 10 for equal choices: with responses of probability 3/4 and 1/4, and k = 2, the best responses
    are worth 10 + 2 log(3/4) and 10 + 2 log(1/4).
    """

    class Equal(torch.nn.Module):
        def given_others(self, obs, state, others, last_joint_action=None):
            return 10 * torch.stack([others[..., 0, 3:], others[..., 1, :3]], -2)

    algorithm, _ = pac_learner(climbing(), 1)
    probs = torch.tensor([[0.75, 0.25, 1e-30, 0.75, 0.25, 1e-30]])
    given = (Equal(), {}, None, torch.ones(1, 6, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool))
    expected = 10 + 2 * torch.tensor([0.75, 0.25]).log()
    best = algorithm.responses.best(*given, 2 * probs.log())
    torch.testing.assert_close(best[..., :2], expected.expand(1, 2, 2))


def test_responses_are_all_joint_actions_of_the_others():
    """Of three agents with four choices: 16 pairs for each, without the agent's own choice."""
    responses = Responses(make_team("discrete"), CPU)
    table = responses.table.unflatten(-1, (3, 4))
    assert table.shape == (16, 3, 3, 4)
    for agent in range(3):
        others = [j for j in range(3) if j != agent]
        assert not table[:, agent, agent].any()
        chosen = table[:, agent, others].argmax(-1)
        assert len({tuple(pair) for pair in chosen.tolist()}) == 16
        assert (table[:, agent, others].sum(-1) == 1).all()


def test_chunks_of_responses_have_the_same_maxima(monkeypatch):
    algorithm, collector = pac_learner(Everything("discrete", 0.4), 3)
    rollout = collect_rollout(algorithm, collector)
    obs = algorithm.policy.obs_normalizer.of_rollout(rollout)
    given = (obs, algorithm._state(rollout.state), algorithm._joint_mask(rollout), rollout.alive)
    whole = algorithm.responses.best(algorithm.joint_critic, *given)
    monkeypatch.setattr("coterie.algos.pac.ROWS", 1)
    torch.testing.assert_close(algorithm.responses.best(algorithm.joint_critic, *given), whole)


def test_advantages_are_hoped_values_minus_the_critics():
    settings = {"gamma": 0.0, "normalize_value": False, "normalize_advantage": False, "tie_break": 0.0}
    algorithm, collector = pac_learner(climbing(), 8, **settings)
    algorithm.critic = lambda obs, state, first, hidden_state: (torch.full((*obs["agent"].shape[:-1], 1), 2.0), {})
    algorithm.joint_critic = Table()
    algorithm.target.module = Table()
    rollout = collect_rollout(algorithm, collector)
    batch = targets_of(algorithm, rollout, as_sequences=True).batch
    best = torch.tensor([[11.0, 7, 6], [11, 7, 5]])
    choice = rollout.action["agent"].discrete[..., 0]
    for agent in range(2):
        torch.testing.assert_close(batch.advantage[..., agent], best[agent][choice[..., agent]] - 2)
    torch.testing.assert_close(batch.target[..., 0], rollout.reward)


@pytest.mark.parametrize("n", [1, 3])
def test_targets_bootstrap_from_the_hoped_value_of_the_action_taken(n):
    """Rewards of 1, values 10 of choice 0 and 20 of choice 1, and their mean at the last timestep."""
    world = Probe(observe_ones, lambda x, age, d, c: torch.ones(len(x), 2), n=2, length=100)
    algorithm, collector = pac_learner(
        world, 4, return_steps=n, gamma=0.5, normalize_value=False, rollout_length=5, value_time_left=False
    )
    values = torch.tensor([10.0, 20.0])
    algorithm.responses.best = lambda critic, obs, state, mask, alive, bonus=None: values.expand(*alive.shape, 2)
    rollout = collect_rollout(algorithm, collector)
    probs = algorithm._probs(rollout, algorithm.policy.obs_normalizer.of_rollout(rollout))[-1]
    value = torch.cat([values[rollout.action["agent"].discrete[..., 0]], (probs * values).sum(-1).unsqueeze(0)])
    target = targets_of(algorithm, rollout, as_sequences=True).batch.target[..., 0]
    for t in range(5):
        steps = min(n, 5 - t)
        expected = sum(0.5**k for k in range(steps)) + 0.5**steps * value[t + steps]
        torch.testing.assert_close(target[t], expected)


def test_the_last_probabilities_are_those_of_the_policy_that_acts():
    for rnn in ("none", "gru"):
        algorithm, collector = pac_learner(Everything("discrete", 0.0), 3, rnn=rnn, rollout_length=4)
        before = [collect_rollout(algorithm, collector) for _ in range(2)]
        obs = algorithm.policy.obs_normalizer.of_rollout(before[0])
        probs = algorithm._probs(before[0], obs)[-1]
        first = {role: action.discrete[0] for role, action in before[1].action.items()}
        log_prob = before[1].extras["log_prob"][0]
        choice = torch.cat([first[role.name] for role in algorithm.team.roles], 1)
        torch.testing.assert_close(probs.gather(-1, choice)[..., 0].log(), log_prob)


def test_too_many_joint_actions_are_refused():
    team = make_team("discrete")
    wide = tuple(replace(role, action_space=spaces.Discrete(65)) for role in team.roles)
    with pytest.raises(UserError, match=r"has 4,225 of them, more than 4,096"):
        PAC(PACConfig(), AlgorithmContext(team=replace(team, roles=wide), num_envs=2, seed=0, device=CPU))


def test_dead_agents_have_no_part_in_responses():
    """What a dead agent could have chosen does not matter: its action is zero in all of them."""
    algorithm, _ = pac_learner(climbing(), 1)
    seen = []

    class Recorder(torch.nn.Module):
        def given_others(self, obs, state, others, last_joint_action=None):
            seen.append(others)
            return torch.zeros(*others.shape[:-1], 3)

    alive = torch.tensor([[True, False]])
    algorithm.responses.best(Recorder(), {}, None, torch.ones(1, 6, dtype=torch.bool), alive)
    assert not seen[0][..., 0, :].any()
    assert seen[0][..., 1, :3].any()


def test_the_joint_critic_learns_the_payoffs_of_climbing():
    """With a discount of 0, Q_i is the payoff, and the values with best responses are 11, 7, 6 and 11, 7, 5."""
    settings = {"lr": 1e-2, "gamma": 0.0, "entropy_coef": 20.0, "epochs": 4, "num_minibatches": 2}
    algorithm, collector = pac_learner(climbing(), 32, **settings)
    for _ in range(40):
        rollout = collect_rollout(algorithm, collector)
        algorithm.update(rollout, 0.0)
    mean, std = algorithm.value_scale()
    obs, state = algorithm.policy.obs_normalizer.of_rollout(rollout), algorithm._state(rollout.state)
    best = algorithm.responses.best(algorithm.joint_critic, obs, state, algorithm._joint_mask(rollout), rollout.alive)
    torch.testing.assert_close(best[0, 0] * std + mean, torch.tensor([[11.0, 7, 6], [11, 7, 5]]), atol=1.5, rtol=0)


@pytest.mark.slow
def test_pareto_ac_reaches_the_optimum_of_a_risky_game(tmp_path):
    """A policy gradient from uniform play climbs to 7 of 11. More games and all ten seeds: benchmarks/pareto.py."""
    quiet = {"progress": "off", "threads": 1, "device": "cpu", "log.tensorboard": False, "checkpoint.every": 0}
    evaluation = {"eval.every": 50_000, "eval.mode": "greedy", "eval.episodes": 4}
    out = tmp_path / "run"
    coterie.train(algo="pac", env="matrix/climbing", seed=3, out=str(out), **quiet, **evaluation)
    returns = [row["eval/return_mean"] for row in read(out / "metrics.jsonl") if "eval/return_mean" in row]
    assert returns[-1] == pytest.approx(25 * 11)


def test_an_update_is_that_of_loops_over_entries():
    """Best responses by enumeration, returns step by step, and the loss of the joint-action critic entry by entry.

    Agents die: their returns continue with the team, and both critics learn from the timesteps in which they are dead.
    """
    settings = {"critic": "joint_state", "gamma": 0.9, "return_steps": 3, "bootstrap_at_limit": True, "epochs": 1}
    algorithm, collector = pac_learner(
        Everything("discrete", 0.0), 4, normalize_obs=True, normalize_advantage=False, **settings
    )
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    generator = torch.Generator().manual_seed(0)
    for parameter in algorithm.target.module.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    rollout = collect_rollout(algorithm, collector)
    obs, state = algorithm.policy.obs_normalizer.of_rollout(rollout), algorithm._state(rollout.state)
    present, mean, std = present_agents(rollout), *algorithm.value_scale()

    @torch.no_grad()
    def q_of(critic, t, b, actions):
        """Returns Q for joint actions [E, J] at a timestep [E, N, A]."""
        here = tree_map(lambda x: x[t, b].expand(len(actions), *x[t, b].shape), (obs, state))
        return critic(*here, actions, None)

    probs = algorithm._probs(rollout, obs).log() * 0.05

    def likely(t, b, choices):
        """What the choices of the others add to Q_i [N, 1]."""
        parts = [0.0 if x is None else probs[t, b, i, x].item() for i, x in enumerate(choices)]
        return torch.tensor([[sum(parts) - part] for part in parts])

    def best(critic, t, b):
        """Returns the maxima over what the agents can do [N, A]; Q_i does not depend on the action of i."""
        legal = [mask.nonzero().flatten().tolist() for mask in by_agent(rollout.action_mask, t, b)]
        options = [choices if here else [None] for choices, here in zip(legal, present[t, b], strict=True)]
        all_choices = list(itertools.product(*options))
        q = q_of(critic, t, b, torch.stack([joint_action(choices) for choices in all_choices]))
        if critic is algorithm.joint_critic:
            q = q + torch.stack([likely(t, b, choices) for choices in all_choices])
        return q.amax(0) * std + mean

    chosen = torch.tensor([[choices_of(rollout, t, b) for b in range(4)] for t in range(12)]).unsqueeze(-1)
    hoped, following = (
        torch.stack([torch.stack([best(critic, t, b) for b in range(4)]) for t in times])
        for critic, times in ((algorithm.joint_critic, range(12)), (algorithm.target.module, range(1, 13)))
    )
    hoped = hoped.gather(-1, chosen)[..., 0]
    last = (following[-1:] * algorithm._probs(rollout, obs)[-1]).sum(-1)
    following = torch.cat([following[:-1].gather(-1, chosen[1:])[..., 0], last])
    reward, target = rollout.reward + rollout.group_reward, torch.zeros(12, 4, 3)
    for t, b, i in itertools.product(range(12), range(4), range(3)):
        values = {"reward": reward[:, b, i].tolist(), "next_value": following[:, b, i].tolist()}
        target[t, b, i] = n_step(rollout, t, b, **values, gamma=0.9, n=3)
    with torch.no_grad():
        value = algorithm.critic(obs, state, None, {})[0][:-1, ..., 0] * std + mean
        moments = copy.deepcopy(algorithm.value_moments)
        found = targets_of(algorithm, rollout)
    mean, std = algorithm.value_scale()
    acts = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    of_team = acts.any(-1, keepdim=True).expand_as(acts)
    assert (of_team & ~acts).any()
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close((found.batch.target[..., 0] * std + mean)[of_team], target[of_team], **close)
    torch.testing.assert_close(found.batch.advantage[acts], (hoped - value)[acts], **close)
    explained = 1 - (target - value)[of_team].var() / target[of_team].var()
    assert found.metrics["value/explained_variance"].item() == pytest.approx(explained.item(), rel=1e-3)
    errors = []
    for t, b in team_steps(rollout):
        choices = choices_of(rollout, t, b)
        actions = joint_action([x if here else None for x, here in zip(choices, rollout.alive[t, b], strict=True)])
        q = q_of(algorithm.joint_critic, t, b, actions.unsqueeze(0))[0]
        errors += [q[i, choices[i]] - (target[t, b, i] - mean) / std for i in range(3)]
    algorithm.value_moments = moments
    loss = algorithm.update(rollout, 0.0)["loss/critic"]
    assert loss == pytest.approx(0.5 * torch.stack(errors).square().mean().item(), rel=1e-4)
