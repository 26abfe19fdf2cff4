"""Policies belong to agents by name, in whatever order an environment lists them later."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
import orderedbatch
from coterie.__main__ import main
from coterie.assembly.environment import require_recorded_agents
from coterie.assembly.learners import load_run_or_make
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.envs.external.returned import possible_agents
from coterie.envs.make import make as make_env
from coterie.export.portable.player import Player
from tinyruns import tiny_run, train

NAMES = ("a_0", "a_1", "a_2", "b_0", "b_1")
SHUFFLED = ("b_1", "a_1", "a_2", "b_0", "a_0")


class Named:
    """Observations are functions of an agent's name and the time; the reward of an agent is its action."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    order: ClassVar[Any] = NAMES
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.possible_agents = list(self.order.pop(0) if isinstance(self.order, list) else self.order)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-9, 9, (3,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.time = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self.time += 1
        done = self.time == 4
        rewards = {agent: float(action[0]) for agent, action in actions.items()}
        ends, never = dict.fromkeys(actions, done), dict.fromkeys(actions, False)
        seen = self._seen()
        self.agents = [] if done else self.agents
        return seen, rewards, ends, never, {}

    def _seen(self) -> dict[str, Any]:
        return {agent: seen_by(agent, self.time) for agent in self.agents}

    def close(self) -> None:
        pass


def seen_by(agent: str, time: int) -> np.ndarray:
    number = NAMES.index(agent)
    return np.array([number, time, number * time / 5], np.float32)


def make() -> Named:
    return Named()


def settings(*more: str) -> list[str]:
    return [f"env={__name__}:make", "algo=mappo", "algo.share_params=none", "steps=48", "num_envs=2", *more]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with parameters of each agent's own, which began with the agents in order."""
    return tiny_run(tmp_path / "run", *settings("algo.rnn=gru", "algo.rnn_size=4", "env.teams=shared", "algo.lr=1e-12"))


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Named, "order", NAMES)


def acts(player: Any) -> list[dict[str, float]]:
    """Returns the actions of two timesteps by agent."""
    found = [player.act({agent: seen_by(agent, time) for agent in NAMES}) for time in (0, 1)]
    return [{agent: float(action[0]) for agent, action in sorted(actions.items())} for actions in found]


def returns(run: Path) -> dict[str, Any]:
    team = coterie.evaluate(run, episodes=4, mode="greedy")["teams"]["all"]
    return {key: value for key, value in team.items() if "return" in key or key == "agents"}


@pytest.mark.slow
def test_policies_stay_those_of_their_agents(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before, expected, last = (
        acts(coterie.load(run).player(mode="greedy")),
        returns(run),
        acts(coterie.load(run, "last").player(mode="greedy")),
    )
    assert len(set(before[0].values())) == len(NAMES), "the control: every agent acts in its own way"
    monkeypatch.setattr(Named, "order", SHUFFLED)
    assert acts(coterie.load(run).player(mode="greedy")) == before
    assert returns(run) == expected
    assert main(["export", str(run), "--format", "numpy", "--out", str(tmp_path / "export")]) == 0
    for found, right in zip(acts(Player(tmp_path / "export", mode="greedy")), before, strict=True):
        assert found == pytest.approx(right, abs=1e-5)
    assert main(["resume", str(run), "steps=50"]) == 0  # its steps change nothing that can be seen
    for found, right in zip(acts(coterie.load(run, "last").player(mode="greedy")), last, strict=True):
        assert found == pytest.approx(right, abs=1e-5)


@pytest.mark.slow
def test_other_runs_take_weights_and_policies_by_name(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = acts(coterie.load(run, "last").player(mode="greedy"))
    monkeypatch.setattr(Named, "order", SHUFFLED)
    same = ("algo.rnn=gru", "algo.rnn_size=4", "env.teams=shared")
    train(tmp_path / "warm", *settings(*same, f"init.run={run}", "init.checkpoint=last", "algo.lr=1e-12"))
    for found, right in zip(acts(coterie.load(tmp_path / "warm", "last").player(mode="greedy")), before, strict=True):
        assert found == pytest.approx(right, abs=1e-5)
    frozen = [f"env={__name__}:make", "env.teams=shared", "algo=frozen", f"algo.run={run}", "algo.checkpoint=last"]
    policy: Any = load_run_or_make(None, resolve(frozen)).algorithms["all"].policy
    policy.mode = "greedy"
    with torch.no_grad(), contextlib.closing(make_env(f"{__name__}:make", {"teams": "shared"}, num_envs=1)) as env:
        assert env.spec.agents != NAMES, "the control: the environment has another order"
        timestep, hidden = env.reset(0), policy.initial_hidden_state(1)
        for right in before:
            noise = policy.draw_noise(1, 1, torch.Generator())[0]
            action, hidden, _ = policy.act(timestep, hidden, noise, "greedy")
            numbers = torch.cat([action[role.name].continuous for role in env.spec.roles], 1)[0, :, 0].clamp(-1, 1)
            assert dict(zip(env.spec.agents, numbers.tolist(), strict=True)) == pytest.approx(right, abs=1e-5)
            _, timestep = env.step(action)


def test_instances_and_evaluation_have_the_order_of_the_first(monkeypatch: pytest.MonkeyPatch):
    """Each instance lists its agents in another order."""
    orders = [NAMES, *([NAMES[::-1], SHUFFLED] * 8)]
    monkeypatch.setattr(Named, "order", orders)
    env = make_env(f"{__name__}:make", {"teams": "shared"}, num_envs=3)
    timestep = env.reset(0)
    seen = {role: x[:, :, 0].tolist() for role, x in timestep.obs.items()}
    assert seen == {"a": [[0, 1, 2]] * 3, "b": [[3, 4]] * 3}


def test_other_names_are_refused_in_one_line(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Named, "order", ("a_0", "a_1", "x_2", "b_0", "b_1"))
    monkeypatch.setitem(globals(), "seen_by", lambda agent, time: np.zeros(3, np.float32))
    for function in (coterie.load, lambda path: coterie.evaluate(path, episodes=1), lambda path: coterie.resume(path)):
        with pytest.raises(
            UserError, match=r"its agents are a_0, a_1, x_2.*, but the run or env.agent_order has"
        ) as error:
            function(run)
        assert "\n" not in str(error.value)


def test_sets_of_names_are_sorted_since_their_order_differs_between_processes():
    class Env:
        possible_agents = frozenset({"b_10", "a", "b_9"})

    assert possible_agents(Env()) == ["a", "b_10", "b_9"]


@pytest.mark.parametrize("command", ["evaluate", "resume", "play"])
def test_a_batch_whose_agents_come_in_another_order_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = tiny_run(tmp_path / "run", "env=orderedbatch:spread", "algo=ippo", "algo.share_params=none")
    monkeypatch.setattr(orderedbatch, "REVERSED", [True])
    more = {"resume": ["steps=160"], "play": ["--video", str(tmp_path / "x.mp4")], "evaluate": ["--episodes", "1"]}
    assert main([command, str(run), *more.get(command, [])]) == 2
    said = "agent_2, agent_1, agent_0, but the run has agent_0, agent_1, agent_2. Policies belong to agents by name"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("agents", [[["agent_0"], 1, None], "agents", 5, {}, [], None])
def test_recorded_agents_of_any_kind_are_compared(agents: Any):
    """The manifest of a run may be damaged."""
    (team,) = make_env("particle/simple_spread", {}, num_envs=1).spec.default_teams()
    manifest = {"teams": {team.name: {"roles": {"agent": {"agents": agents}}}}}
    if agents is None or agents == 5:  # as in runs of older versions
        require_recorded_agents(manifest, "x", {team.name: team})
    else:
        with pytest.raises(UserError, match=r"^environment 'x': the agents of role agent are agent_0"):
            require_recorded_agents(manifest, "x", {team.name: team})
