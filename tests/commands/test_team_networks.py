"""Runs whose networks see the team or entities: exact resume, other numbers of agents, players, exports, own bodies."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.__main__ import main
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.export.export import export
from coterie.export.portable.player import Player
from coterie.export.portable.policy_files import PolicyError
from tinyruns import REPLAY, assert_resumes_exactly, tiny, train

MODULE = """
import torch
from torch import nn

CALLS = []

class Mean(nn.Module):
    def __init__(self, input_size, role=None, part="actor"):
        super().__init__()
        CALLS.append((role, part, input_size))
        self.layer = nn.Linear(2 * input_size, 6)

    def forward(self, x, alive, edges=None):
        assert alive.shape == x.shape[:-1]
        CALLS.append(None if edges is None else tuple(edges.shape[1:]))
        weight = alive.float().unsqueeze(-1)
        mean = (weight * x).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp(min=1)
        return self.layer(torch.cat([x, mean.expand_as(x)], -1)).relu()

class Rows(nn.Module):
    def __init__(self, input_size):
        super().__init__()
        self.layer = nn.Linear(input_size, 6)

    def forward(self, x, alive):
        return self.layer(x).flatten(0, 1)

def make(input_size):
    return Mean(input_size)

make.sees_team = True
"""

ENVIRONMENT = """
import numpy as np
from gymnasium import spaces

from coterie import Entities, ObservationParts

class Line:
    metadata = {"name": "line"}
    possible_agents = agents = ["a_0", "a_1", "a_2"]

    def __init__(self, wrong=False):
        space = spaces.Box(-1, 1, (9,), np.float32)
        entities = Entities.rows("own", (0, 2)), Entities.rows("ally", (2, 2), count=2)
        space.parts = ObservationParts(entities, position=(0, 99 if wrong else 1), neighbors=(6, 7, 8))
        self.space = space

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _obs(self):
        hears = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32)
        return {a: np.concatenate([np.full(6, 0.1, np.float32), hears[i]]) for i, a in enumerate(self.agents)}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self._obs(), {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        obs, end = self._obs(), self.t == 5
        ends = {a: end for a in self.agents}
        rewards = {a: float(actions[a]) for a in self.agents}
        if end:
            self.agents = []
        return obs, rewards, dict.fromkeys(ends, False), ends, {a: {} for a in ends}

    def close(self):
        pass

def wrong():
    return Line(wrong=True)
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with bodies on the search path."""
    package = tmp_path / "teamlab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODULE)
    (package / "line.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("teamlab", "teamlab.nets", "teamlab.line"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "algo=mappo network=tarmac env=particle/simple_spread algo.rnn=gru algo.rnn_size=8",
        "algo=qmix network=graph env=skirmish/3m algo.rnn=gru algo.rnn_size=8 " + " ".join(REPLAY),
    ],
)
def test_runs_resume_bit_for_bit(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resumes_exactly(tmp_path, monkeypatch, 40, *words.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("algo=poca", "network=commnet", "env=skirmish/3m"),
        ("algo=coma", "network=ic3net", "env=skirmish/3m"),
        ("algo=masac", "network=attention", "env=particle/simple_spread", *REPLAY),
    ],
    ids=lambda settings: settings[0],
)
def test_other_families_train_with_the_other_networks(settings: tuple[str, ...], tmp_path: Path) -> None:
    assert train(tmp_path / "run", *settings, "steps=40").summary.steps >= 40


@pytest.mark.slow
def test_a_body_of_the_user_sees_the_team(lab: Path) -> None:
    import teamlab.nets as nets  # pyright: ignore[reportMissingImports]

    for name in ("Mean", "make"):
        nets.CALLS.clear()
        words = ("env=particle/simple_spread", "algo=mappo", f"network=teamlab.nets:{name}", "steps=40")
        run = train(lab / name, *words)
        assert (None, "actor", 18) in nets.CALLS
        assert None in nets.CALLS
        assert coterie.load(run).policies["agent"].communicates
    nets.CALLS.clear()
    near = ("algo.network_edges=radius", "algo.network_radius=0.5", "critic_network=mlp")
    train(lab / "near", "env=particle/simple_spread", "algo=mappo", "network=teamlab.nets:Mean", *near)
    assert (3, 3) in nets.CALLS
    assert (None, "critic", 18) not in nets.CALLS


@pytest.mark.slow
def test_own_environments_declare_parts_on_their_observation_space(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import teamlab.nets as nets  # pyright: ignore[reportMissingImports]

    run = train(lab / "entities", "env=teamlab.line:Line", "algo=ippo", "network=attention")
    (role,) = coterie.load(run).teams["a"].roles
    assert [(part.kind, part.count) for part in role.parts.entities] == [("own", 1), ("ally", 2)]
    train(lab / "edges", "env=teamlab.line:Line", "algo=ippo", "network=teamlab.nets:Mean", "algo.network_edges=given")
    assert (3, 3) in nets.CALLS
    assert main(["train", *tiny("env=teamlab.line:wrong", "algo=ippo", "out=wrong")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "role a: parts of its observation space: there is no index 99 in an observation of 9 numbers." in error


@pytest.mark.slow
def test_teams_play_against_their_snapshots(tmp_path: Path) -> None:
    settings = ("algo=mappo", "env=particle/simple_ball", "network=graph", "selfplay.opponents=uniform")
    more = ("selfplay.snapshot_interval=40", "selfplay.rating_episodes=2", "env.episode_limit=20")
    assert train(tmp_path / "run", *settings, *more).summary.steps >= 80


def test_observations_without_a_view_are_one_line() -> None:
    parts = build(resolve(tiny("algo=mappo", "env=particle/simple_spread", "network=commnet")).config)
    try:
        policy = parts.algorithms["agent"].policy
        with pytest.raises(UserError, match=r"pass what policy\.obs_normalizer\.of_rollout\(rollout\) returns"):
            policy.net({"agent": torch.zeros(4, 3, 18)}, None, {})  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        parts.close()


@pytest.mark.slow
def test_first_ratio_of_an_update_is_one() -> None:
    """The networks that collected a rollout read the same as those that learn from it, dead agents included."""
    for network in ("tarmac", "attention"):
        config = resolve(tiny("algo=mappo", "env=skirmish/3m", f"network={network}", "algo.rollout_length=60")).config
        parts = build(config)
        try:
            learner, collector = parts.algorithms["allies"], parts.collector
            rollout = collector.advance(60)[0]["allies"]
            assert not rollout.alive.all()
            obs = learner.policy.obs_normalizer.of_rollout(rollout)
            log_prob, _ = learner.policy.actor.evaluate(  # pyright: ignore[reportAttributeAccessIssue]
                tree_map(lambda x: x[:-1], obs),
                {name: x[:-1] for name, x in rollout.action_mask.items()},
                rollout.action,
                first=None,
                hidden_state={},
            )
            torch.testing.assert_close(log_prob[rollout.alive[:-1]], rollout.extras["log_prob"][rollout.alive[:-1]])
        finally:
            parts.close()


@pytest.mark.slow
def test_a_policy_of_three_agents_plays_and_continues_with_others(tmp_path: Path) -> None:
    settings = ("algo=mappo", "network=attention", "env=skirmish/3m")
    small = train(tmp_path / "small", *settings)
    before = coterie.load(small).policies["allies"].state_dict()["module"]
    found = coterie.evaluate(small, episodes=4, env="skirmish/8m")
    assert len(found["teams"]["allies"]["return_by_agent"]) == 8
    large = train(tmp_path / "large", *settings[:2], "env=skirmish/8m", f"init.run={small.run}", "algo.lr=1e-12")
    after = coterie.load(large).policies["allies"].state_dict()["module"]
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(value, after[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(UserError, match=r"entities of other kinds or sizes there: own \(8 features\)"):
        coterie.evaluate(small, episodes=4, env="skirmish/2s3z")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("algo=mappo", "network=tarmac"), ("algo=mat", "algo.embedding_size=8")])
def test_players_of_teams_that_need_all_observations_say_so(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Graphs of MAT, which take many seconds, are in `test_onnx_graph.py`."""
    run = train(tmp_path / "run", *settings, "env=particle/simple_spread")
    assert "team agent: centralized execution" in run.summary.text()
    player = coterie.load(run).player(mode="greedy")
    obs = {f"agent_{i}": np.full(18, 0.1 * i, np.float32) for i in range(3)}
    actions = player.act(obs)
    with pytest.raises(
        UserError, match="agent_2 is missing, and the agents of team 'agent' act by what others observe"
    ):
        player.act({name: obs[name] for name in ("agent_0", "agent_1")})
    with pytest.raises(UserError, match="got one array for 3 agents"):
        player.act(obs["agent_0"])
    if "algo=mat" in settings:
        return
    export(run.run, tmp_path / "out")
    assert "centralized execution" in capsys.readouterr().err
    exported = Player(tmp_path / "out", mode="greedy")
    assert exported.policies[0].info["centralized"] is True
    assert exported.act(obs) == actions
    with pytest.raises(PolicyError, match="agent_2 is missing"):
        exported.act({name: obs[name] for name in ("agent_0", "agent_1")})
    with pytest.raises(UserError, match="which only a graph can hold"):
        export(run.run, tmp_path / "other", "numpy")


@pytest.mark.slow
def test_policies_of_entities_are_decentralized(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "algo=mappo", "network=attention", "env=particle/simple_spread")
    assert "centralized" not in run.summary.text()
    player = coterie.load(run).player(mode="greedy")
    obs = {f"agent_{i}": np.full(18, 0.1 * i, np.float32) for i in range(3)}
    actions = player.act(obs)
    assert player.act({"agent_1": obs["agent_1"]}) == {"agent_1": actions["agent_1"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("network=attention", "env=matrix/climbing"), "declares no entities in its observation"),
        (("network=tarmac", "algo.share_params=none"), "agents share the parameters of algo.network=tarmac"),
        (("network=graph", "algo.network_edges=radius"), "algo.network_edges=radius: there is no radius"),
        (("network=graph", "algo.network_edges=given"), "role 'agent' declares no index of its neighbors"),
        (("network=graph", "algo.network_heads=3"), "algo.network_heads=3: does not divide the 8 units"),
        (("critic_network=commnet", "algo.critic=state"), "algo.critic=state: reads no agents"),
        (("algo=poca", "critic_network=commnet"), "MA-POCA's critic has attention over agents"),
        (("network=teamlab.nets:Rows",), "algo.network=teamlab.nets:Rows returned shape [6, 6] for an input of shape"),
    ],
    ids=lambda x: x[-1] if isinstance(x, tuple) else "",
)
def test_combinations_without_sense_are_refused_in_one_line(
    settings: tuple[str, ...], message: str, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("algo=mappo", "env=particle/simple_spread", *settings, "out=run")
    words = list({word.partition("=")[0]: word for word in given}.values())
    assert main(["train", *tiny(*words)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
