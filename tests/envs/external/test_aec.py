"""Turn-based environments with attributes of a wrong kind: one line names the attribute."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.envs.make import make
from gymnasium_worlds import played

HERE = __name__
VALUES: dict[str, Any] = {"none": None, "number": 3, "list": [0, 0], "text": "x", "array": np.zeros(2)}
DICTS = ("terminations", "truncations", "_cumulative_rewards", "infos")


class Turns:
    """Two agents act in turn for six steps. An attribute is spoiled in `reset` or in the first step."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents = ("a_0", "a_1")

    def __init__(self, attribute: str = "", value: str = "", when: str = "reset"):
        self.attribute, self.value, self.when = attribute, value, when

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)

    def last(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.age, self.agent_selection = list(self.possible_agents), 0, "a_0"
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self._cumulative_rewards, self.infos = dict.fromkeys(self.agents, 0.0), {agent: {} for agent in self.agents}
        self.spoil("reset")

    def step(self, action: Any) -> None:
        if action is None:
            self.agents.remove(self.agent_selection)
            self.agent_selection = self.agents[0] if self.agents else ""
            return
        self.age += 1
        self._cumulative_rewards = {agent: total + 1 for agent, total in self._cumulative_rewards.items()}
        self.terminations = dict.fromkeys(self.agents, self.age == 6)
        self.agent_selection = self.possible_agents[self.age % 2]
        self.spoil("step")

    def spoil(self, when: str) -> None:
        if self.attribute and self.when == when:
            setattr(self, self.attribute, VALUES[self.value])

    def close(self) -> None:
        pass


def turns(attribute: str = "", value: str = "", when: str = "reset") -> Any:
    return Turns(attribute, value, when)


def play(params: dict[str, Any]) -> list[float]:
    """Returns the sums of rewards of eight steps."""
    env = make(f"{HERE}:turns", params)
    env.reset()
    return [step.reward.sum().item() for _, step, _ in played(env, 8)]


def test_infos_of_none_are_empty():
    rewards = play({})
    assert play({"attribute": "infos", "value": "none"}) == rewards
    assert play({"attribute": "infos", "value": "none", "when": "step"}) == rewards


@pytest.mark.parametrize(
    ("attribute", "value", "when"),
    [(attribute, "number", "step") for attribute in (*DICTS, "agents", "agent_selection")]
    + [("terminations", value, "reset") for value in ("none", "list", "text", "array")]
    + [("agents", "none", "reset"), ("agent_selection", "text", "reset"), ("_cumulative_rewards", "none", "step")],
)
def test_an_attribute_of_a_wrong_kind_is_named(attribute: str, value: str, when: str):
    with pytest.raises(UserError) as error:
        play({"attribute": attribute, "value": value, "when": when})
    expected = {"agents": "expected a list of names", "agent_selection": "expected one of"}
    assert f"`{attribute}` is" in str(error.value)
    assert expected.get(attribute, "expected a dict by agent") in str(error.value)


def test_the_check_names_an_attribute_of_a_wrong_kind(capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", f"{HERE}:turns", "env.attribute=infos", "env.value=number", "--json"]) == 1
    assert "`infos` is" in json.loads(capsys.readouterr().out)["findings"][0]["message"]
