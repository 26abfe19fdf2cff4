"""Structure of what environments return: every wrong one is a line in training and in check-env, and both agree."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from coterie.__main__ import main
from coterie.core.errors import EnvironmentFailedError, UserError
from coterie.envs.make import make
from gymnasium_worlds import SampledEnv, played
from returning import PARTS, RESETS, SHAPES, SPACE, STEPS, Several, Single
from tinyruns import shorten_checks

HERE = __name__


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults show in the first episodes."""
    shorten_checks(monkeypatch)


PLAIN = [*(f"{part} number" for part in PARTS), *(f"rewards {shape}" for shape in SHAPES if shape != "number")]


def message_of_training(name: str, params: dict[str, Any]) -> str:
    def play() -> None:
        env = make(name, params)
        env.reset()
        list(played(env, 6))

    with pytest.raises((UserError, EnvironmentFailedError)) as error:
        play()
    assert "failed in" not in str(error.value), "the message is that of Python"
    return str(error.value)


def findings(name: str, *keys: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    main(["check-env", name, *keys, "--json"])
    return json.loads(capsys.readouterr().out)["findings"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("single", fault) for fault in [*RESETS, *STEPS]),
        *(("several", fault) for fault in ("reset of nothing", "reset of three", "step of four", "step of a dict")),
    ],
)
def test_a_wrong_result_of_reset_or_step_is_one_line_in_training_and_in_the_check(
    kind: str, fault: str, capsys: pytest.CaptureFixture[str]
):
    said = message_of_training(f"returning:{kind}", {"fault": fault})
    call = "reset()" if fault in RESETS else "step()"
    assert f"{call} returned" in said
    assert "expected" in said
    found = findings(f"returning:{kind}", f"env.fault={fault}", capsys=capsys)
    assert [finding["severity"] for finding in found] == ["error"]
    assert said.endswith(found[0]["message"])


@pytest.mark.parametrize("fault", PLAIN)
def test_a_plain_value_instead_of_a_dict_by_agent_is_named(fault: str):
    said = message_of_training("returning:several", {"fault": fault})
    part, _, shape = fault.partition(" ")
    value = SHAPES[shape]
    shown = f"{part} of type {type(value).__name__}" if shape in ("list", "array") else f"{part}={value!r}"
    fix = {"rewards": ". Return {agent: reward} for", "terminations": ". Return {agent: terminated} with True or False"}
    fix["truncations"] = ". Return {agent: truncated} with True or False"
    assert f"step() returned {shown}, expected a dict by agent{fix.get(part, '')}" in said


@pytest.mark.parametrize("kind", ["single", "several"])
@pytest.mark.parametrize("call", [RESETS, STEPS])
def test_infos_of_none_are_empty_and_lists_are_sequences(
    kind: str, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    for name, change in (("empty", lambda *parts: (*parts[:-1], None)), ("sequence", lambda *parts: list(parts))):
        monkeypatch.setitem(call, name, change)
        env = make(f"returning:{kind}", {"fault": name})
        env.reset()
        assert sum(step.reward.sum().item() for _, step, _ in played(env, 4)) == (4 if kind == "single" else 8)


@pytest.mark.parametrize("old", [True, False])
def test_a_reset_without_seed_is_one_line(old: bool, monkeypatch: pytest.MonkeyPatch):
    for kind in (Single, Several):
        monkeypatch.setattr(kind, "reset", lambda self: None)
        if old:
            monkeypatch.setattr(kind, "seed", lambda self, seed: None, raising=False)
        said = message_of_training(f"returning:{kind.__name__}".lower(), {})
        assert "reset() takes no seed" in said
        assert ("interface of old Gym" in said) == old


@pytest.mark.parametrize("info", [True, "x", [1], np.zeros(2)])
def test_the_info_of_an_agent_is_a_dict_or_nothing(info: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(STEPS, "info", lambda o, r, t, c, i: (o, r, t, c, dict.fromkeys(i, info)))
    assert "the info of agent 'a_0' is" in message_of_training("returning:several", {"fault": "info"})
    monkeypatch.setitem(STEPS, "info", lambda o, r, t, c, i: (o, r, t, c, dict.fromkeys(i)))
    env = make("returning:several", {"fault": "info"})
    env.reset()
    assert len(list(played(env, 6))) == 6


@pytest.mark.parametrize("value", [None, (2,), spaces.Discrete])
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_what_is_no_space_is_named(value: Any, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Single, name, value)
    said = message_of_training("returning:single", {})
    assert f"{name} is " in said
    assert "expected a space of gymnasium" in said
    monkeypatch.setattr(Several, name, lambda self, agent: value)
    said = message_of_training("returning:several", {})
    assert f"{name}('a_0') is " in said


@pytest.mark.parametrize("agents", [3, "ab", True, ["a", "a"]])
def test_agents_are_a_list_of_unique_names(agents: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Several, "possible_agents", agents)
    said = message_of_training("returning:several", {})
    assert "occurs more than once" in said if isinstance(agents, list) else "expected a list of names" in said


@pytest.mark.parametrize("flag", ["terminations", "truncations"])
def test_an_episode_that_only_the_key_of_all_agents_ends_is_reported_at_once(
    flag: str, monkeypatch: pytest.MonkeyPatch
):
    def end(*parts: Any) -> Any:
        result = dict(zip(PARTS, parts, strict=True))
        return tuple((result | {flag: {"a_0": False, "a_1": False, "__all__": True}}).values())

    monkeypatch.setitem(STEPS, "all", end)
    env = make("returning:several", {"fault": "all"})
    env.reset()
    with pytest.raises(UserError, match=f"step.. returned {flag} of '__all__'.*RLlib"):
        next(played(env, 1))


@pytest.mark.parametrize("over", [False, True])
def test_flags_of_all_agents_only_are_reported_at_once(over: bool, monkeypatch: pytest.MonkeyPatch):
    only = {"__all__": over}
    monkeypatch.setitem(STEPS, "only", lambda o, r, t, c, i: (o, r, only, only, i))
    said = message_of_training("returning:several", {"fault": "only"})
    assert "'__all__' is RLlib's convention. Set the flag of every agent" in said


NESTED = spaces.Dict({"pos": SPACE, "arm": spaces.Dict({"angle": SPACE, "grip": spaces.Discrete(3)})})
GOOD: dict[str, Any] = {"pos": np.zeros(2, np.float32), "arm": {"angle": np.zeros(2, np.float32), "grip": 0}}
WRONG: dict[str, tuple[Any, str]] = {
    "missing": ({"pos": GOOD["pos"]}, "the observation lacks ['arm']"),
    "surplus": (GOOD | {"leg": 0}, "the observation has undeclared ['leg']"),
    "missing inside": (GOOD | {"arm": {"grip": 0}}, "the observation['arm'] lacks ['angle']"),
    "surplus inside": (GOOD | {"arm": GOOD["arm"] | {"x": 0}}, "the observation['arm'] has undeclared ['x']"),
    "array inside": (GOOD | {"arm": np.zeros(2)}, "the observation['arm'] is a ndarray, expected a dict"),
}


@pytest.mark.parametrize(("kind", "fault"), [*((Single, fault) for fault in WRONG), (Several, "missing inside")])
def test_wrong_keys_of_an_observation_are_named(
    kind: type, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    value, expected = WRONG[fault]
    one = kind is Single
    monkeypatch.setattr(kind, "observation_space", NESTED if one else lambda self, agent: NESTED)
    monkeypatch.setitem(RESETS, "good", lambda o, i: (GOOD if one else dict.fromkeys(o, GOOD), i))
    monkeypatch.setitem(STEPS, "good", lambda o, *parts: (value if one else {"a_0": GOOD, "a_1": value}, *parts))
    name = f"returning:{kind.__name__}".lower()
    said = message_of_training(name, {"fault": "good"})
    assert expected in said
    assert one or "agent 'a_1': " in said
    found = findings(name, "env.fault=good", capsys=capsys)
    assert any(expected in finding["message"] for finding in found if finding["severity"] == "error")


PAIRS: dict[str, spaces.Space] = {
    "arrays": spaces.Tuple([SPACE, SPACE]),
    "choices": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)]),
    "array_and_dict": spaces.Tuple([SPACE, spaces.Dict({"x": SPACE})]),
    "dicts": spaces.Tuple([spaces.Dict({"x": SPACE}), spaces.Dict({"x": SPACE})]),
    "array": SPACE,
    "codes": spaces.MultiDiscrete([3, 3]),
    "dict": spaces.Dict({"a": SPACE, "b": SPACE}),
    "three": spaces.Tuple([SPACE, SPACE, SPACE]),
}


class Old(gymnasium.Env):
    """A reset of old Gym returns the observation alone, which may be a sequence of two."""

    def __init__(self, kind: str, *, is_continuous: bool, as_list: bool):
        self.observation_space: Any = PAIRS[kind]
        self.action_space: Any = spaces.Box(-1, 1, (1,)) if is_continuous else spaces.Discrete(2)
        self.as_list = as_list

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        found: Any = self.observation_space.sample()
        return list(found) if self.as_list and not isinstance(found, dict) else found

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, {}


@pytest.mark.parametrize(
    ("kind", "is_continuous", "as_list"), [(kind, k % 2 == 1, k % 2 == 0) for k, kind in enumerate(PAIRS)]
)
def test_an_old_reset_is_recognized_whatever_it_returns(
    kind: str, is_continuous: bool, as_list: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """An observation of two parts was taken for an observation and an info."""
    maker = lambda: Old(kind, is_continuous=is_continuous, as_list=as_list)  # noqa: E731
    monkeypatch.setattr(f"{HERE}.old", maker, raising=False)
    with pytest.raises(UserError, match="returning only the observation is the interface of old Gym") as error:
        make(f"{HERE}:old", {}).reset()
    assert "\n" not in str(error.value)
    assert main(["check-env", f"{HERE}:old", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["rule"], "interface of old Gym" in finding["message"]) == ("reset-return", True)


def renamed(fault: str = "position") -> Any:
    """Observations whose key `position` has another name, next to a mask that is read after them."""
    space = spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(2)})
    env: Any = SampledEnv(space, spaces.Discrete(2))
    seen = {"position": np.zeros(2, np.float32), "action_mask": np.ones(2, np.int8)}
    shown = {("other" if key == fault else key): part for key, part in seen.items()}
    env.reset = lambda **_: (shown, {})
    return env


@pytest.mark.parametrize("key", ["position", "action_mask"])
def test_a_wrong_key_of_an_observation_is_named_with_the_right_one(key: str):
    said = message_of_training(f"{HERE}:renamed", {"fault": key})
    assert f"the observation lacks ['{key}'] and has undeclared ['other']; its space names [" in said
    assert said.endswith("Return exactly the entries that the space names.")
