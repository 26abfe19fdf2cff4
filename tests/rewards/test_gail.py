"""GAIL: rewards of demonstrated actions, masking of dead agents, resuming, and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, Probe, env_of
from coterie.__main__ import main
from coterie.algos.algorithm import AlgorithmContext
from coterie.commands import train as training
from coterie.config.rewards import GailConfig
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.functional.returns import valid_mask
from coterie.imitation.recorder import DemoSource, record
from coterie.policies.base import Policy, RandomPolicy
from coterie.rewards.gail import GAIL
from coterie.training.collector import Collector
from preset_learners import ImageAndVector
from rule_policy import Rule
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at, train

CPU = torch.device("cpu")


def coins(n=2):
    """Agents observe 0 or 1 and have two choices."""
    return Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: torch.zeros(len(x), 1), n=n)


def repeat(timestep):
    """Chooses the observed number."""
    return {"agent": Action(timestep.obs["agent"].long())}


def context_of(team, num_envs=2):
    return AlgorithmContext(team=team, num_envs=num_envs, seed=0, device=CPU)


def made(world, path, does=None, num_envs=16, **settings):
    """Returns a signal with demonstrations of a rule or the random policy, and a collector with the random policy."""
    env = env_of(world, num_envs)
    (team,) = env.spec.default_teams()
    teacher: dict[str, Policy] = {team.name: RandomPolicy(team, CPU) if does is None else Rule(team, does)}
    demos = record(env, teacher, DemoSource("some/world", {}), episodes=40, modes={team.name: "sample"}, seed=0)
    demos.write(path)
    config = GailConfig(demos=path, **{"hidden_sizes": (16,), "lr": 1e-2, "normalize_obs": False} | settings)
    policy: dict[str, Policy] = {team.name: RandomPolicy(team, CPU)}
    return GAIL(config, context_of(team, num_envs)), Collector(env, policy, seed=0)


def as_demonstrated(rollout):
    """Returns where an agent chose the observed number, [T, B, N]."""
    done = rollout.action["agent"].discrete
    return done[..., 0] == rollout.obs["agent"][:-1, ..., 0].long()


def rollout_of(collector, steps=12):
    (rollout,) = collector.advance(steps)[0].values()
    return rollout


def trained(signal, collector, rollouts=25):
    metrics = {}
    for _ in range(rollouts):
        rollout = rollout_of(collector)
        signal.reward(rollout)
        metrics = signal.update(rollout)
    return metrics


@pytest.mark.slow
def test_demonstrated_actions_are_rewarded_more(tmp_path):
    signal, collector = made(coins(), tmp_path / "demos", repeat)
    trained(signal, collector)
    rollout = rollout_of(collector)
    reward, there = signal.reward(rollout), valid_mask(rollout)
    like = as_demonstrated(rollout)
    assert float(reward[there & like].min()) > float(reward[there & ~like].max())
    assert (reward[~there] == 0).all()


@pytest.mark.slow
def test_without_actions_the_rewards_are_equal(tmp_path):
    """Negative control: the discriminator does not distinguish actions that it does not read."""
    signal, collector = made(coins(), tmp_path / "demos", repeat, actions=False)
    metrics = trained(signal, collector)
    rollout = rollout_of(collector)
    reward, there = signal.reward(rollout), valid_mask(rollout)
    like = as_demonstrated(rollout)
    assert float(reward[there & like].mean()) == pytest.approx(float(reward[there & ~like].mean()), abs=0.05)
    assert metrics["gail/demo_prob"] == pytest.approx(metrics["gail/policy_prob"], abs=0.15)


@pytest.mark.parametrize(("form", "low", "high"), [("positive", 0, 99), ("negative", -99, 0), ("bounded", -1, 1)])
def test_each_form_has_its_range_and_rewards_are_zero_before_the_first_update(form, low, high, tmp_path):
    signal, collector = made(coins(), tmp_path / "demos", repeat, reward=form)
    rollout = rollout_of(collector)
    assert (signal.reward(rollout) == 0).all()
    signal.update(rollout)
    reward = signal.reward(rollout)[valid_mask(rollout)]
    assert ((reward >= low) & (reward <= high) & (reward != 0)).all()


@pytest.mark.parametrize("kind", ["discrete", "hybrid"])
def test_observations_of_dead_agents_have_no_effect(kind, tmp_path):
    world, results = Everything(kind, dead=0.0), []
    _, collector = made(world, tmp_path / "demos")
    rollout = rollout_of(collector)
    dead = ~rollout.alive
    for value, where in ((0.0, dead), (7.0, dead), (7.0, ~dead)):
        obs = {
            role: torch.where(part.unsqueeze(-1), value, rollout.obs[role])
            for role, part in (("guard", where[..., :2]), ("scout", where[..., 2:]))
        }
        signal, _ = made(world, tmp_path / "demos")
        shown = replace(rollout, obs=obs)
        signal.reward(shown)
        results.append((signal.update(shown), signal.reward(shown)))
    assert dead.any()
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][0] != results[2][0], "negative control: observations of living agents have an effect"


def test_the_gradient_is_taken_at_random_points_between_demonstrations_and_play(tmp_path):
    signal, collector = made(coins(), tmp_path / "demos", repeat, activation="tanh")
    rollout = rollout_of(collector)
    inputs = signal.inputs({name: x[:-1] for name, x in rollout.obs.items()}, rollout.action)
    repeated = {name: x[:1, :1].expand(8, 16, *x.shape[2:]).flatten(0, 1) for name, x in inputs.items()}
    opposite = {name: 1 - x for name, x in repeated.items()}
    same = signal.interpolated_gradients(repeated, repeated)
    different = signal.interpolated_gradients(repeated, opposite)
    assert torch.equal(same, same[:1].expand_as(same))
    assert len(different[:, 0].unique(dim=0)) > 100  # of 128


@pytest.mark.slow
def test_the_penalty_limits_the_gradient(tmp_path):
    steep, collector = made(coins(), tmp_path / "demos", repeat, penalty=0.0)
    gentle, same = made(coins(), tmp_path / "demos", repeat, penalty=10.0)
    found = []
    for signal, played in ((steep, collector), (gentle, same)):
        trained(signal, played, 40)
        rollout = rollout_of(played)
        read = signal.inputs({k: x[:-1] for k, x in rollout.obs.items()}, rollout.action)
        flat = {name: x.flatten(0, 1) for name, x in read.items()}
        found.append(float(signal.interpolated_gradients(flat, flat).detach().norm(dim=-1).mean()))
    assert found[1] < 1.5 < found[0]


@pytest.mark.slow
def test_a_resumed_run_with_gail_is_bit_identical(tmp_path, monkeypatch):
    demos = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "probe/roles", "--out", str(demos)]) == 0
    settings = ("env=probe/roles", "algo=mappo", f"rewards.gail.demos={demos}", "rewards.gail.hidden_sizes=[8]")
    train(tmp_path / "whole", *settings)
    with monkeypatch.context() as patched:
        stop_at(patched, 40)
        train(tmp_path / "parts", *settings)
    training.resume(tmp_path / "parts", [])
    assert_same(checkpoint_state(tmp_path / "whole"), checkpoint_state(tmp_path / "parts"))
    assert log_entries(tmp_path / "whole") == log_entries(tmp_path / "parts")
    assert any("gail/policy_prob" in entry for entry in log_entries(tmp_path / "whole"))
    with pytest.raises(
        UserError, match=r"rewards.gail.demos=.* they were recorded in probe/roles, but the environment is probe/both"
    ):
        train(tmp_path / "other", "env=probe/both", f"rewards.gail.demos={demos}")
    assert not (tmp_path / "other").exists()


def test_invalid_settings_are_one_line_errors(tmp_path):
    signal, _ = made(coins(), tmp_path / "demos", repeat)
    (team,) = env_of(coins(), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"rewards.gail has no demonstrations\. Set rewards.gail.demos=FILE"):
        GAIL(GailConfig(), context_of(team))
    (images,) = env_of(ImageAndVector(), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"rewards.gail reads vectors, but role 'agent' observes"):
        GAIL(GailConfig(demos=tmp_path / "demos"), context_of(images))
    (three,) = env_of(coins(3), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"role 'agent': 2 agents in the demonstrations, 3 in the environment"):
        GAIL(GailConfig(demos=tmp_path / "demos"), context_of(three))
    state = signal.state_dict()
    made(coins(), tmp_path / "other")
    other = GAIL(signal.config.model_copy(update={"demos": tmp_path / "other"}), context_of(team))
    with pytest.raises(UserError, match="have changed since the run was started"):
        other.load_state_dict(state)
