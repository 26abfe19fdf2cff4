"""GAIL: what looks demonstrated is rewarded, what stands in dead places changes nothing, and it goes on to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algos.test_every import Sensing
from algos.worlds import Everything, Probe, env_of
from coterie import run
from coterie.__main__ import main
from coterie.algos.onpolicy import live
from coterie.collect import Collector
from coterie.errors import UserError
from coterie.imitation.recording import record
from coterie.policy import Policy, RandomPolicy
from coterie.rewards.config import GailConfig
from coterie.rewards.gail import Gail
from coterie.types import Action
from imitation.test_cloning import Rule
from tinyruns import assert_same, rows_of, state_of, stop_at, train

CPU = torch.device("cpu")


def coins(n=2):
    """Agents see a number, 0 or 1, and choose one of two."""
    return Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: torch.zeros(len(x), 1), n=n)


def mirrored(row):
    """Chooses what it sees."""
    return {"agent": Action(row.obs["agent"].long())}


def made(world, path, does=None, copies=16, **settings):
    """A signal with demonstrations of who follows a rule, or plays at random, and a collector that plays at random."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    teacher: dict[str, Policy] = {team.name: RandomPolicy(team, CPU) if does is None else Rule(team, does)}
    record(env, teacher, 40, {team.name: "sample"}, 0, "some/world", {}, {}).write(path)
    config = GailConfig(demos=path, **{"hidden": (16,), "lr": 1e-2, "normalise_obs": False} | settings)
    policy: dict[str, Policy] = {team.name: RandomPolicy(team, CPU)}
    return Gail(team, config, copies, 0, CPU), Collector(env, policy, seed=0)


def alike(window):
    """[T, B, N]: an agent chose what it saw."""
    done = window.action["agent"].discrete
    return done[..., 0] == window.obs["agent"][:-1, ..., 0].long()


def window_of(collector, steps=12):
    (window,) = collector.advance(steps)[0].values()
    return window


def taught(signal, collector, windows=25):
    metrics = {}
    for _ in range(windows):
        window = window_of(collector)
        signal.reward(window)
        metrics = signal.update(window)
    return metrics


def test_what_is_done_as_demonstrated_is_rewarded_more(tmp_path):
    signal, collector = made(coins(), tmp_path / "demos", mirrored)
    taught(signal, collector)
    window = window_of(collector)
    reward, there = signal.reward(window), live(window)
    like = alike(window)
    assert float(reward[there & like].min()) > float(reward[there & ~like].max())
    assert (reward[~there] == 0).all()


def test_without_actions_it_cannot_tell(tmp_path):
    """The control: the same observations with other actions are the same to it."""
    signal, collector = made(coins(), tmp_path / "demos", mirrored, actions=False)
    metrics = taught(signal, collector)
    window = window_of(collector)
    reward, there = signal.reward(window), live(window)
    like = alike(window)
    assert float(reward[there & like].mean()) == pytest.approx(float(reward[there & ~like].mean()), abs=0.05)
    assert metrics["gail/demonstrated"] == pytest.approx(metrics["gail/played"], abs=0.15)


@pytest.mark.parametrize(("form", "low", "high"), [("positive", 0, 99), ("negative", -99, 0), ("bounded", -1, 1)])
def test_each_form_has_its_range_and_nothing_is_rewarded_before_the_first_update(form, low, high, tmp_path):
    signal, collector = made(coins(), tmp_path / "demos", mirrored, reward=form)
    window = window_of(collector)
    assert (signal.reward(window) == 0).all()
    signal.update(window)
    reward = signal.reward(window)[live(window)]
    assert ((reward >= low) & (reward <= high) & (reward != 0)).all()


@pytest.mark.parametrize("kind", ["discrete", "hybrid"])
def test_what_stands_in_dead_places_changes_nothing(kind, tmp_path):
    world, results = Everything(kind, dead=0.0), []
    _, collector = made(world, tmp_path / "demos")
    window = window_of(collector)
    dead = ~window.alive
    for value, where in ((0.0, dead), (7.0, dead), (7.0, ~dead)):
        obs = {
            role: torch.where(part.unsqueeze(-1), value, window.obs[role])
            for role, part in (("guard", where[..., :2]), ("scout", where[..., 2:]))
        }
        signal, _ = made(world, tmp_path / "demos")
        shown = replace(window, obs=obs)
        signal.reward(shown)
        results.append((signal.update(shown), signal.reward(shown)))
    assert dead.any()
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][0] != results[2][0], "the control: what the living see counts"


def test_the_penalty_keeps_the_slope_down(tmp_path):
    steep, collector = made(coins(), tmp_path / "demos", mirrored, penalty=0.0)
    gentle, same = made(coins(), tmp_path / "demos", mirrored, penalty=10.0)
    found = []
    for signal, played in ((steep, collector), (gentle, same)):
        taught(signal, played, 40)
        window = window_of(played)
        read = signal._inputs({k: x[:-1] for k, x in window.obs.items()}, window.action)
        flat = {name: x.flatten(0, 1) for name, x in read.items()}
        found.append(float(signal._slopes(flat, flat).detach().norm(dim=-1).mean()))
    assert found[1] < 1.5 < found[0]


def test_a_run_with_gail_goes_on_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    demos = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "probe/roles", "--out", str(demos)]) == 0
    settings = ("env=probe/roles", "algo=mappo", f"rewards.gail.demos={demos}", "rewards.gail.hidden=[8]")
    train(tmp_path / "whole", *settings)
    with monkeypatch.context() as patched:
        stop_at(patched, 40)
        train(tmp_path / "parts", *settings)
    run.resume(tmp_path / "parts", [])
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"))
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "parts")
    assert any("gail/played" in row for row in rows_of(tmp_path / "whole"))
    with pytest.raises(UserError, match=r"rewards.gail.demos=.* they are of probe/roles, and this is probe/both"):
        train(tmp_path / "other", "env=probe/both", f"rewards.gail.demos={demos}")
    assert not (tmp_path / "other").exists()


def test_mistakes_are_one_line(tmp_path):
    signal, _ = made(coins(), tmp_path / "demos", mirrored)
    (team,) = env_of(coins(), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"rewards.gail has no demonstrations: give rewards.gail.demos=FILE"):
        Gail(team, GailConfig(), 2, 0, CPU)
    (pictures,) = env_of(Sensing(), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"rewards.gail reads vectors, and role 'agent' observes"):
        Gail(pictures, GailConfig(demos=tmp_path / "demos"), 2, 0, CPU)
    (three,) = env_of(coins(3), 2).spec.default_teams()
    with pytest.raises(UserError, match=r"role 'agent': 2 agents in the demonstrations, 3 in the environment"):
        Gail(three, GailConfig(demos=tmp_path / "demos"), 2, 0, CPU)
    state = signal.state_dict()
    made(coins(), tmp_path / "other")
    other = Gail(team, signal.config.model_copy(update={"demos": tmp_path / "other"}), 2, 0, CPU)
    with pytest.raises(UserError, match="have changed since the run was started"):
        other.load_state_dict(state)
