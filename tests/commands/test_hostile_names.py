"""Runs of environments whose agents, sensors, teams and metrics have names that mean something to Python or PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.export.portable.player import Player
from tinyruns import GRU, REPLAY, log_entries, tiny_run

NAMES = ["items", "team.a_0", "a/b", "", "ä ☃", "train"]
EYES = spaces.Dict(
    {
        "pos": spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "keys": spaces.Discrete(3)}),
        "pos.x": spaces.Box(-1, 1, (1,)),
        "items": spaces.MultiBinary(2),
        "": spaces.Box(-1, 1, (1,)),
        "a/b": spaces.Box(-1, 1, (1,)),
    }
)


class Named:
    """Agents with the names above, of which two have the sensors above. Rewards are the actions."""

    metadata: ClassVar[dict[str, Any]] = {"name": "named", "render_modes": []}

    def __init__(self, names: list[str] = NAMES):
        self.possible_agents, self.agents = list(names), []

    def observation_space(self, agent: str) -> spaces.Space:
        return EYES if agent in ("items", "train") else spaces.Box(-1, 1, (3,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.time, self.draw = list(self.possible_agents), 0, np.random.default_rng(seed)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self.time += 1
        ends = dict.fromkeys(self.agents, self.time >= 4)
        rewards = {agent: float(np.sum(action)) for agent, action in actions.items()}
        infos = {agent: {"m.x": 1.0, "items": 2.0, "a/b": 3.0} for agent in self.agents}
        seen = self._observations()
        self.agents = [] if self.time >= 4 else self.agents
        return seen, rewards, ends, dict.fromkeys(ends, False), infos

    def _observations(self) -> dict[str, Any]:
        return {agent: self._drawn(self.observation_space(agent)) for agent in self.agents}

    def _drawn(self, space: spaces.Space) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._drawn(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Box):
            return self.draw.uniform(-1, 1, space.shape).astype(np.float32)
        return int(self.draw.integers(3)) if isinstance(space, spaces.Discrete) else self.draw.integers(0, 2, 2)

    def close(self) -> None:
        pass


def make() -> Named:
    return Named()


def make_few() -> Named:
    """Three agents, whose policies are exported quickly."""
    return Named(["items", "a/b", ""])


CLIPPED = ("algo.epochs=1", "algo.num_minibatches=1")
CASES = {
    "ippo, teams": ("algo=ippo", *CLIPPED, "rewards.icm.weight=0.1", "rewards.rnd.weight=0.1"),
    "mappo, unshared, GRU": ("algo=mappo", "env.teams=shared", *CLIPPED, *GRU, "algo.share_params=none"),
    "qmix, on disk": (
        *("algo=qmix", "env.teams=shared", *REPLAY, "algo.rnn=none", "algo.obs_last_action=false"),
        *("algo.buffer_storage=disk", "algo.share_params=role"),
    ),
}


def settings(case: str, world: str = "make") -> list[str]:
    return [f"env={__name__}:{world}", "num_envs=2", "steps=24", "eval.every=24", *CASES[case]]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_trains_is_evaluated_and_resumes(case: str, tmp_path: Path):
    run = tmp_path / "run"
    tiny_run(run, *settings(case))
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert main(["resume", str(run), "steps=48"]) == 0
    player = coterie.load(run).player()
    assert {agent for role in player._owner.values() for agent in role.agents} == set(NAMES)
    returns = {name for name in log_entries(run)[-1] if name.startswith("eval/") and name.endswith("return_mean")}
    assert len(returns) >= (len(NAMES) if case == "ippo, teams" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "form"), [("ippo, teams", "numpy"), ("mappo, unshared, GRU", "torch"), ("qmix, on disk", "onnx")]
)
def test_a_run_is_exported_and_acts(case: str, form: str, tmp_path: Path):
    out = tmp_path / "run"
    few = form == "onnx"
    tiny_run(out, *settings(case, "make_few" if few else "make"))
    assert main(["export", str(out), "--format", form, "--out", str(tmp_path / "export")]) == 0
    names, plain = ["items", "a/b", ""] if few else NAMES, np.zeros(3, np.float32)
    eyes = {"pos": {"x": [0.1, 0.2], "keys": 0}, "pos.x": [0.5], "items": [1, 0], "": [0.0], "a/b": [1.0]}
    obs = {agent: eyes if agent in ("items", "train") else plain for agent in names}
    actions = Player(tmp_path / "export", mode="sample").act(obs)
    assert actions.keys() == set(names)
    assert set(actions.values()) <= {0, 1, 2}
