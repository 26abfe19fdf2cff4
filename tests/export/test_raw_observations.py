"""Every player acts on what an environment returned, and returns actions of its own space."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec
from coterie.core.types import Action
from coterie.envs.external.batched_spaces import BatchObserver
from coterie.envs.external.spaces import Observer
from coterie.export.export import TORCH_POLICY
from coterie.export.portable.observation_reader import ObservationReader
from coterie.export.portable.player import Player
from coterie.export.portable.policy_files import PolicyError
from coterie.export.subject import observation_entry
from coterie.playing import policy_server
from exports import load_player
from gymnasium_worlds import SampledEnv
from tinyruns import train

IMAGE = spaces.Box(0, 255, (9, 9, 3), np.uint8)
OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,)),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float64),
    "scalar": spaces.Box(-1, 1, ()),
    "integers": spaces.Box(-5, 5, (2,), np.int64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "image": IMAGE,
    "gray": spaces.Box(0, 255, (9, 9), np.uint8),
    "discrete": spaces.Discrete(5),
    "started": spaces.Discrete(4, start=-2),
    "multidiscrete": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "binary": spaces.MultiBinary(3),
    "switches": spaces.MultiBinary([2, 2]),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2, 2)), spaces.Tuple([spaces.MultiBinary(2)])]),
    "pictures": spaces.Tuple([IMAGE, spaces.Discrete(3)]),
    "dict": spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "key": spaces.Discrete(3, start=1)}),
    "nested": spaces.Dict({
        "eye": IMAGE,
        "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2, 1)), "grip": spaces.Tuple([spaces.Discrete(2), IMAGE])}),
        "tool": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
    }),
}  # fmt: skip
"""Observation spaces by the name of the agent that has it."""

ACTIONS: list[spaces.Space] = [
    spaces.Discrete(3, start=1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-2, 3, (2, 2), np.float64),
    spaces.Box(0, 9, (2,), np.int32),
    spaces.Dict({"move": spaces.Discrete(2, start=-1), "force": spaces.Box(0, 1, (2,))}),
    spaces.Tuple([spaces.Discrete(4), spaces.Dict({"throttle": spaces.Box(-1, 1, ())})]),
]
ACTION_OF = {name: ACTIONS[i % len(ACTIONS)] for i, name in enumerate(OBSERVATIONS)}


class Menagerie:
    """Every agent has a space of its own, and observes samples of it for four steps."""

    def __init__(self, agents: Sequence[str] = tuple(OBSERVATIONS)):
        self.metadata: dict[str, Any] = {}
        self.possible_agents = self.agents = list(agents)
        self.spaces = {agent: copy.deepcopy(OBSERVATIONS[agent]) for agent in agents}

    def observation_space(self, agent: str) -> spaces.Space:
        return self.spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return ACTION_OF[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        for i, space in enumerate(self.spaces.values()):
            space.seed(None if seed is None else seed + i)
        self.agents, self.age = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        for agent, action in actions.items():
            assert ACTION_OF[agent].contains(action)
        self.age += 1
        everyone, over = self.agents, self.age == 4
        self.agents = [] if over else everyone
        return (
            {agent: self.spaces[agent].sample() for agent in everyone},
            dict.fromkeys(everyone, 1.0),
            dict.fromkeys(everyone, over),
            dict.fromkeys(everyone, False),
            {agent: {} for agent in everyone},
        )

    def close(self) -> None:
        """Nothing is open."""

    def _observations(self) -> dict[str, Any]:
        return {agent: self.spaces[agent].sample() for agent in self.agents}


def menagerie() -> Menagerie:
    return Menagerie()


FEW = ("integers", "nested")
"""Agents with every type of numbers and of parts, since writing a graph takes more than a second per agent."""


def few() -> Menagerie:
    return Menagerie(FEW)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a team of all agents, exported to NumPy and PyTorch."""
    folder = tmp_path_factory.mktemp("raw")
    train(folder / "run", f"env={__name__}:menagerie", "algo=ippo", "env.teams=shared", "steps=40")
    assert main(["export", str(folder / "run"), "--format", "torch", "--out", str(folder / "torch")]) == 0
    return folder


def converted(space: spaces.Space, value: Any) -> Any:
    """The arrays that training makes of an observation, by sensor."""
    found = {}
    for sensor in Observer(space).sensors:
        found[sensor.name] = np.zeros(sensor.space.shape, sensor.space.dtype)
        sensor.write(found[sensor.name], value)
    return found.get("", found)


def plain(value: Any) -> Any:
    """An observation or an action as JSON has it."""
    return json.loads(json.dumps(policy_server._plain(value)))


def coteries(trained: Path) -> Any:
    return coterie.load(trained / "run").player(mode="greedy").act


def numpys(trained: Path) -> Any:
    return load_player(trained).Player(trained / "torch", mode="greedy").act


def pytorchs(trained: Path) -> Any:
    policy = load_player(trained, TORCH_POLICY).TorchPolicy(trained / "torch" / "all")
    return lambda obs: policy.actions(policy(policy.first_inputs(obs)), "greedy")


def onnxs(folder: Path) -> Any:
    train(folder / "run", f"env={__name__}:few", "algo=ippo", "env.teams=shared", "steps=40")
    assert main(["export", str(folder / "run"), "--out", str(folder / "onnx")]) == 0
    return Player(folder / "onnx", mode="greedy").act


def in_node(script: str, argument: Any) -> Any:
    """What a script for Node.js prints as JSON, given an argument as JSON."""
    command = ["node", "--input-type=module", "--eval", script, json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def javascripts(trained: Path) -> Any:
    """Acts in Node.js, with the file that the export wrote. Each call is a new episode."""

    def act(obs: Any, export: str = "torch/all") -> Any:
        script = (
            f"import {{ Player }} from '{trained}/torch/coterie_player.mjs';\n"
            f"const player = await Player.open('{trained}/{export}', {{ mode: 'greedy' }});\n"
            "try { console.log(JSON.stringify(player.act(JSON.parse(process.argv[1])))); }\n"
            "catch (error) { console.log(JSON.stringify({ error: error.message })); }\n"
        )
        return in_node(script, plain(obs))

    return act


needs_node = pytest.mark.skipif(shutil.which("node") is None and "CI" not in os.environ, reason="needs Node.js")


@pytest.mark.parametrize("player", [coteries, numpys, pytorchs, pytest.param(onnxs, marks=pytest.mark.slow)])
def test_a_player_acts_on_what_the_environment_returned(trained: Path, player: Any, tmp_path: Path):
    act, env = (player(tmp_path), few()) if player is onnxs else (player(trained), menagerie())
    seen, _ = env.reset(seed=3)
    actions = act(seen)
    for agent, action in actions.items():
        assert ACTION_OF[agent].contains(action), agent
    env.step(actions)
    assert plain(actions) == plain(act({agent: converted(OBSERVATIONS[agent], x) for agent, x in seen.items()}))
    changed, _ = env.reset(seed=4)
    assert plain(act(changed)) != plain(actions)


def test_all_players_agree(trained: Path):
    seen, _ = Menagerie().reset(seed=5)
    ours, numpy, torch_ = (plain(player(trained)(seen)) for player in (coteries, numpys, pytorchs))
    for agent, action in ours.items():
        for other in (numpy, torch_):
            torch.testing.assert_close(leaves(other[agent]), leaves(action), msg=agent)


@needs_node
def test_the_javascript_player_acts_as_coteries_player(trained: Path):
    act, ours = javascripts(trained), coteries(trained)
    for seed in range(2):
        seen, _ = Menagerie().reset(seed=seed)
        found, expected = act(seen), plain(ours(seen))
        for agent, action in expected.items():
            torch.testing.assert_close(leaves(found[agent]), leaves(action), rtol=1e-4, atol=1e-4, msg=agent)
        assert act({agent: converted(OBSERVATIONS[agent], x) for agent, x in seen.items()}) == found


@needs_node
def test_wrong_observations_are_named_in_javascript(trained: Path):
    act = javascripts(trained)
    for agent, value, said in (
        ("discrete", 5, "obs of 'discrete': the value 5, expected integers 0 to 4"),
        ("dict", {"pos": [0, 0], "key": 1}, "obs of 'dict' has no sensor 'pos'. The sensors are 'key', 'position'"),
        ("dict", {"position": [0, 0], "key": 0}, "obs of 'dict', sensor 'key': the value 0, expected integers 1 to 3"),
        ("vector", [0, None, 0], "obs of 'vector' holds null at position 1, expected finite numbers"),
        ("nobody", 0, "obs: no agent 'nobody'. There are vector, matrix"),
    ):
        assert said in act({agent: value})["error"]


NETWORKS = (
    ("ippo", "rnn=gru", "share_params=none"),
    ("mappo", "rnn=lstm", "layer_norm=true"),
    ("iql", "rnn=gru", "obs_last_action=true", "learning_starts=0"),
    ("masac", "learning_starts=0", "activation=gelu"),
)


@needs_node
def test_the_javascript_player_evaluates_every_kind_of_network(tmp_path: Path):
    for algo, *settings in NETWORKS:
        own = [f"teams.agent.algo.{setting}" for setting in settings]
        run = tmp_path / f"{algo}-run"
        train(run, "env=particle/simple_spread", "algo=mappo", f"teams.agent.algo={algo}", *own, "eval.every=0")
        assert main(["export", str(run), "--format", "torch", "--out", str(tmp_path / algo)]) == 0
    rng = np.random.default_rng(0)
    steps = [{f"agent_{i}": rng.normal(size=18).tolist() for i in range(3)} for _ in range(4)]
    script = (
        f"import {{ Player }} from '{tmp_path}/ippo/coterie_player.mjs';\n"
        "const [folders, steps] = JSON.parse(process.argv[1]);\n"
        "const found = [];\n"
        "for (const folder of folders) {\n"
        "  const player = await Player.open(folder, { mode: 'greedy' });\n"
        "  found.push(steps.map((obs) => player.act(obs)));\n"
        "}\n"
        "console.log(JSON.stringify(found));\n"
    )
    folders = [str(tmp_path / algo / "agent") for algo, *_ in NETWORKS]
    found = in_node(script, [folders, steps])
    for (algo, *_), theirs in zip(NETWORKS, found, strict=True):
        ours = Player(tmp_path / algo, mode="greedy")
        mine = [plain(ours.act(obs)) for obs in steps]
        torch.testing.assert_close(leaves(theirs), leaves(mine), rtol=1e-4, atol=1e-4, msg=algo)


def leaves(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    return [x for part in value for x in leaves(part)] if isinstance(value, list) else [float(value)]


def test_the_policy_server_takes_them_as_json(trained: Path):
    seen, _ = Menagerie().reset(seed=3)
    player = Player(trained / "torch", mode="greedy")
    message = json.dumps({"obs": plain(seen)})
    assert policy_server.answer(player.another(), message) == {"actions": plain(player.act(seen))}
    assert policy_server.answer_once(player, message.encode()) == {"actions": plain(player.another().act(seen))}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_players_and_training_convert_alike(name: str):
    """For one observation, a batch of a vector environment, JSON, and arrays that were converted before."""
    space = copy.deepcopy(OBSERVATIONS[name])
    space.seed(1)
    observer = Observer(space)
    role = RoleSpec("a", "a", ("a",), observer.space, spaces.Discrete(2), native=observer.native)
    reader = ObservationReader(json.loads(json.dumps(observation_entry(role))))
    batch = [space.sample() for _ in range(5)]
    stacked = gymnasium.vector.utils.concatenate(
        space, batch, gymnasium.vector.utils.create_empty_array(space, len(batch))
    )
    by_batch = BatchObserver(space)(stacked, len(batch))
    for i, seen in enumerate(batch):
        expected = converted(space, seen)
        expected = expected if isinstance(expected, dict) else {"": expected}
        for given in (seen, plain(seen), expected.get("", expected), plain(expected.get("", expected))):
            found = reader.read(given, "obs")
            assert list(found) == list(expected)
            for sensor, array in expected.items():
                np.testing.assert_array_equal(found[sensor], array)
                np.testing.assert_array_equal(by_batch[sensor][i], array)


class Numbered(Menagerie):
    """Two agents whose names are integers."""

    def __init__(self):
        super().__init__()
        self.possible_agents = self.agents = [0, 1]
        self.spaces = {0: spaces.Discrete(3), 1: spaces.MultiBinary(2)}

    def action_space(self, agent: int) -> spaces.Space:
        return spaces.Discrete(2)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        assert set(actions) == {0, 1}
        return self._observations(), *({0: value, 1: value} for value in (1.0, False, False)), {0: {}, 1: {}}


def numbered() -> Numbered:
    return Numbered()


def test_agents_keep_the_names_that_the_environment_gives_them(tmp_path: Path):
    train(tmp_path / "run", f"env={__name__}:numbered", "env.episode_limit=5", "algo=ippo", "steps=40")
    assert main(["export", str(tmp_path / "run"), "--format", "numpy", "--out", str(tmp_path / "out")]) == 0
    seen, _ = Numbered().reset(seed=1)
    ours = coterie.load(tmp_path / "run").player(mode="greedy").act(seen)
    assert set(ours) == {0, 1}
    assert Player(tmp_path / "out", mode="greedy").act(seen) == ours


SIGHTS = spaces.Dict({
    "eye": spaces.Box(0, 255, (3, 13, 14), np.uint8),
    "map": spaces.Box(0, 255, (10, 12, 2), np.uint8),
    "speed": spaces.Box(-1, 1, (2, 1)),
    "key": spaces.Discrete(3, start=1),
})  # fmt: skip
WRAPPERS = {"channels_last": True, "grayscale": True, "resize": [5, 6], "frame_stack": 3}
returned: list[Any] = []


class Sights(SampledEnv):
    """Keeps the observations that it returns."""

    def __init__(self):
        super().__init__(SIGHTS, spaces.Box(-1, 1, (2,)), ends=4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self._kept(super().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, ...]:
        return self._kept(super().step(action))

    def _kept(self, result: Any) -> Any:
        returned.append(result[0])
        return result


def sights() -> Any:
    return Sights()


@pytest.fixture(scope="module")
def seen() -> tuple[list[Any], list[Any]]:
    """Observations of an episode as the environment returns them, and as its wrappers do."""
    env = coterie.make(f"{__name__}:sights", num_envs=1, wrappers=WRAPPERS)
    returned.clear()
    timesteps = [env.reset(seed=3)]
    zeros = {"agent": Action(continuous=torch.zeros(1, 1, 2))}
    timesteps += [env.step(zeros)[1] for _ in range(3)]
    return returned[-4:], [{name: x[0, 0].numpy() for name, x in t.obs["agent"].items()} for t in timesteps]


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrapped")
    settings = [f"env.wrappers.{key}={value}" for key, value in WRAPPERS.items()]
    train(folder / "run", f"env={__name__}:sights", "algo=ppo", "steps=40", *settings)
    assert main(["export", str(folder / "run"), "--format", "torch", "--out", str(folder / "torch")]) == 0
    return folder


def test_players_change_observations_as_the_wrappers_of_the_run(wrapped: Path, seen: tuple[list[Any], list[Any]]):
    reader = ObservationReader(observation_entry(coterie.load(wrapped / "run").teams["agent"].roles[0]))
    before = None
    for raw, changed in zip(*seen, strict=True):
        before = reader.read(raw, "obs", before)
        for name, array in changed.items():
            np.testing.assert_array_equal(before[name], array, name)
            assert array.shape == tuple(reader.sensors[name]["shape"])


def over_http(folder: Path) -> Any:
    """Acts by requests that pass the hidden state on."""
    server, state = Player(folder / "torch", mode="greedy"), {}

    def act(obs: Any) -> Any:
        answer = policy_server.answer_once(server, json.dumps({"obs": plain(obs), "hidden_state": state}).encode())
        state.update(answer["hidden_state"])
        return answer["actions"]

    return act


@pytest.mark.parametrize("player", [coteries, numpys, over_http])
def test_players_of_runs_with_wrappers_take_what_the_environment_returned(
    wrapped: Path, seen: tuple[list[Any], list[Any]], player: Any
):
    raw, changed = seen
    act, other, expected = player(wrapped), player(wrapped), coteries(wrapped)
    for one, two in zip(raw, changed, strict=True):
        action = expected(two)
        np.testing.assert_allclose(act(one), action, atol=1e-5)
        np.testing.assert_allclose(other(two), action, atol=1e-5)
    np.testing.assert_allclose(act(two), action, atol=1e-5)
    assert np.abs(np.subtract(act(one), action)).max() > 1e-4  # the frames before count


def test_wrapped_observations_of_a_first_step_are_the_inputs_of_pytorch(
    wrapped: Path, seen: tuple[list[Any], list[Any]]
):
    policy = load_player(wrapped, TORCH_POLICY).TorchPolicy(wrapped / "torch" / "agent")
    for raw, changed in zip(*(policy.first_inputs({"agent": obs[0]}).values() for obs in seen), strict=True):
        assert torch.equal(raw, changed)


@needs_node
def test_the_javascript_player_changes_observations_as_the_wrappers_of_the_run(
    wrapped: Path, seen: tuple[list[Any], list[Any]]
):
    script = (
        f"import {{ Player }} from '{wrapped}/torch/coterie_player.mjs';\n"
        f"const player = await Player.open('{wrapped}/torch/agent', {{ mode: 'greedy' }});\n"
        "const act = (episode) => { player.reset(); return episode.map((obs) => player.act(obs)); };\n"
        "console.log(JSON.stringify(JSON.parse(process.argv[1]).map(act)));\n"
    )
    raw, changed = in_node(script, plain(list(seen)))
    assert raw == changed
    ours = coteries(wrapped)
    np.testing.assert_allclose(raw, [ours(obs) for obs in seen[0]], atol=1e-4)


WRONG = [
    ("discrete", 5, "obs of 'discrete': the value 5, expected integers 0 to 4, or an array of shape [5]"),
    ("discrete", [1, 2], "obs of 'discrete': shape [2], expected an integer from 0 to 4"),
    ("discrete", None, "obs of 'discrete' is None. Pass"),
    ("started", 2, "obs of 'started': the value 2, expected integers -2 to 1"),
    ("multidiscrete", [1, 2], "obs of 'multidiscrete': the value 2 at index 1, expected integers -1 to 1 there"),
    ("binary", [0, 1, 2], "obs of 'binary': the number 2, expected 0 or 1"),
    ("matrix", np.zeros((3, 2)), "obs of 'matrix' has shape [3, 2], expected [2, 3]"),
    ("tuple", (1, 2), "obs of 'tuple': tuple of length 2, expected a tuple of 3 parts, or an array of shape [9]"),
    ("tuple", (7, np.zeros((2, 2)), ([0, 1],)), "obs of 'tuple', part 0: the value 7, expected integers 0 to 2"),
    ("image", np.full((9, 9, 3), 0.5), "obs of 'image' holds 0.5 at index [0, 0, 0], expected integers from 0 to 255"),
    ("dict", {"pos": [0, 0], "key": 1}, "obs of 'dict' has no sensor 'pos'. The sensors are 'key', 'position'"),
    ("dict", {"key": 1}, "obs of 'dict' lacks the sensor 'position'. The sensors are 'key', 'position'"),
    ("dict", {"position": [0, 0], "key": 0}, "obs of 'dict', sensor 'key': the value 0, expected integers 1 to 3"),
    ("dict", np.zeros(5), "obs of 'dict' lacks the sensor 'key': it is of type ndarray. The sensors are"),
]


@pytest.mark.parametrize(("agent", "value", "message"), WRONG, ids=[f"{i}-{case[0]}" for i, case in enumerate(WRONG)])
def test_a_wrong_observation_is_one_line_that_names_the_sensor(trained: Path, agent: str, value: Any, message: str):
    with pytest.raises(UserError) as ours:
        coteries(trained)({agent: value})
    with pytest.raises(PolicyError) as exported:
        Player(trained / "torch").act({agent: value})
    assert str(ours.value) == str(exported.value)
    assert message in str(ours.value)
    assert "\n" not in str(ours.value)
