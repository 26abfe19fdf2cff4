"""The player of exports: equal to Coterie's, independent of it, and safe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.__main__ import main
from coterie.export.export import player_source
from exports import load_player
from tinyruns import train


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two teams with algorithms of their own, exported to NumPy."""
    folder = tmp_path_factory.mktemp("tag")
    recurrent = ("teams.agent.algo=iql", "teams.agent.algo.rnn=gru", "teams.agent.algo.obs_last_action=true")
    recurrent += ("teams.agent.algo.learning_starts=0",)
    train(folder / "run", "env=particle/simple_tag", "algo=mappo", "algo.rnn=lstm", *recurrent)
    assert main(["export", str(folder / "run"), "--format", "numpy", "--out", str(folder / "out")]) == 0
    return folder


def observations(episode: int, step: int, space: dict[str, int]) -> dict[str, np.ndarray]:
    """Observations by agent; the second agent is missing in the third and fourth step."""
    rng = np.random.default_rng([episode, step])
    found = {name: rng.normal(size=size).astype(np.float32) for name, size in space.items()}
    if step in (2, 3):
        del found[list(space)[1]]
    return found


def test_the_player_of_a_folder_acts_as_coteries_player_for_all_teams(tag: Path):
    ours = coterie.load(tag / "run").player(mode="greedy")
    copy = load_player(tag).Player(tag / "out", mode="greedy")
    spaces = {a: r["shape"][0] for p in copy.policies for r in p.roles for a in r["agents"]}
    assert set(spaces) == {"adversary_0", "adversary_1", "adversary_2", "agent_0"}
    for episode in range(3):
        ours.reset()
        copy.reset()
        for step in range(6):
            obs = observations(episode, step, spaces)
            assert copy.act(obs) == ours.act(obs)


def test_roles_and_masks_are_accepted_as_by_coteries_player(tag: Path):
    copy = load_player(tag).Player(tag / "out" / "adversary", mode="greedy")
    ours = coterie.load(tag / "run").player("adversary", mode="greedy")
    obs = {"adversary": np.ones((3, 16), np.float32)}
    np.testing.assert_array_equal(copy.act(obs)["adversary"], ours.act(obs)["adversary"])
    mask = np.zeros((3, 5), bool)
    mask[[0, 1, 2], [4, 2, 0]] = True
    assert copy.act(obs, {"adversary": mask})["adversary"].tolist() == [4, 2, 0]
    pettingzoo = {"adversary_0": {"observation": np.ones(16), "action_mask": mask[0]}}
    assert copy.act(pettingzoo) == {"adversary_0": 4}


def test_teams_of_several_runs_in_one_folder_are_refused(tag: Path, tmp_path: Path):
    for name in ("agent", "before"):
        shutil.copytree(tag / "out" / "agent", tmp_path / name)
    player = load_player(tag)
    with pytest.raises(player.PolicyError, match="several teams have the agent 'agent_0'"):
        player.Player(tmp_path)


def test_sampled_actions_follow_the_seed(tag: Path):
    copy = load_player(tag).Player(tag / "out" / "adversary", mode="sample", seed=1)
    obs = {"adversary": np.ones((3, 16), np.float32)}
    first = [copy.act(obs)["adversary"].tolist() for _ in range(20)]
    copy.reset(seed=1)
    again = [copy.act(obs)["adversary"].tolist() for _ in range(20)]
    assert first == again
    assert len({tuple(actions) for actions in first}) > 1


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"adversary_9": np.zeros(16)}, "no agent or role 'adversary_9'"),
        ({"adversary": "left"}, "obs of role 'adversary': of type str, expected 3 agents"),
        ({"adversary": 3}, "obs of role 'adversary': of type int, expected 3 agents"),
        ({"adversary": [[0] * 16, [0] * 16, ["1"] * 16]}, r"obs of 'adversary_2' holds '1' at index \[0\]"),
        ({"adversary": [[0] * 16, [0] * 16, [0]]}, r"obs of 'adversary_2' has shape \[1\]"),
        ({"adversary": np.zeros((2, 16))}, "2 agents, expected 3"),
        (np.zeros(16), "pass a dict by agent"),
        (None, "obs"),
    ],
)
def test_wrong_observations_are_refused(tag: Path, obs: Any, message: str):
    player = load_player(tag)
    with pytest.raises(player.PolicyError, match=message):
        player.Player(tag / "out" / "adversary").act(obs)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def elsewhere(path: Path) -> None:
    info = json.loads(path.read_text())
    info["files"] = {"../weights.safetensors": info["files"]["weights.safetensors"]}
    resign(path, info)


def other_version(path: Path) -> None:
    resign(path, json.loads(path.read_text()) | {"version": 99})


def without(path: Path, key: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(path.read_text()).items() if name != key}


def huge(path: Path) -> None:
    """Inputs of more numbers than memory has."""
    info = json.loads(path.read_text())
    info["inputs"][0]["shape"] = [10**6, 10**6]
    resign(path, info)


def resign(path: Path, info: dict[str, Any]) -> None:
    import hashlib

    info.pop("sha256")
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**info, "sha256": digest}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("weights.safetensors", truncated, "changed or truncated"),
        ("weights.safetensors", flipped, "changed or truncated"),
        ("weights.safetensors", Path.unlink, "cannot be read"),
        ("policy.json", truncated, "damaged"),
        ("policy.json", lambda path: path.write_text("[]"), "damaged"),
        ("policy.json", lambda path: path.write_text("[" * 100_000), "damaged"),
        ("policy.json", lambda path: path.write_text(path.read_text().replace('"greedy"', '"sample"')), "changed"),
        ("policy.json", elsewhere, "not a plain one"),
        ("policy.json", other_version, "version 99"),
        ("policy.json", lambda path: resign(path, json.loads(path.read_text()) | {"inputs": [{}]}), "damaged"),
        ("policy.json", lambda path: resign(path, json.loads(path.read_text()) | {"roles": 3}), "damaged"),
        ("policy.json", lambda path: resign(path, without(path, "outputs")), "damaged"),
        ("policy.json", huge, "inputs of more than"),
    ],
)
def test_damaged_exports_are_refused(tag: Path, tmp_path: Path, name: str, damage: Any, message: str):
    folder = tmp_path / "agent"
    folder.mkdir()
    for file in (tag / "out" / "agent").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder / name)
    player = load_player(tmp_path)
    with pytest.raises(player.PolicyError, match=message):
        player.Policy(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("roles", [1]), ("roles", [{}]), ("roles", 1e308), ("agents", None), ("agents", 5)]
)
def test_descriptions_of_other_types_are_damaged_for_the_player(tag: Path, tmp_path: Path, key: str, value: Any):
    shutil.copytree(tag / "out" / "agent", tmp_path / "agent")
    path = tmp_path / "agent" / "policy.json"
    resign(path, json.loads(path.read_text()) | {key: value})
    player = load_player(tag)
    with pytest.raises(player.PolicyError, match="damaged"):
        player.Player(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (10).to_bytes(8, "little") + b"{",
        (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,99]}}     ' + b"\0" * 8,
        (60).to_bytes(8, "little") + b'{"a":{"dtype":"OBJ","shape":[1],"data_offsets":[0,4]}}      ' + b"\0" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (61).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}} ' + b"\0" * 8,
    ],
)
def test_hostile_tensors_are_refused(tmp_path: Path, content: bytes):
    player = load_player(tmp_path)
    with pytest.raises(player.PolicyError, match="damaged"):
        player.read_tensors(content)


def test_the_source_imports_only_the_standard_library_numpy_and_onnxruntime():
    source = player_source()
    found = {
        line.split()[1].partition(".")[0]
        for line in source.splitlines()
        if line.strip().startswith(("import ", "from "))
    }
    found -= {"coterie_player"}  # in the example
    assert found - {"onnxruntime", "numpy"} <= set(sys.stdlib_module_names)
    assert not any(word in source for word in ("pickle", "eval(", "exec(", "allow_pickle=True"))


FORBIDDEN = ("torch", "coterie", "gymnasium", "safetensors", "onnx")


def isolated(folder: Path) -> Path:
    """The interpreter of a new virtual environment, whose path has NumPy and no other package of this one."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    installed = folder / "packages"
    installed.mkdir()
    for found in Path(np.__file__).parent.parent.glob("numpy*"):
        (installed / found.name).symlink_to(found)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{installed}\n")
    return folder / "venv" / "bin" / "python"


@pytest.mark.slow
def test_the_player_acts_in_a_fresh_virtual_environment(tag: Path, tmp_path: Path):
    """Its steps, with a hidden state and in a folder of its own, are those of Coterie's player."""
    out = tmp_path / "out"
    assert main(["export", str(tag / "run"), "--format", "numpy", "--out", str(out), "--team", "agent"]) == 0
    (out / "act.py").write_text(
        "import json, sys\n"
        "from importlib.util import find_spec\n"
        "from coterie_player import Player\n"
        f"found = [name for name in {FORBIDDEN!r} if find_spec(name) is not None]\n"
        "player = Player('.', mode='greedy')\n"
        "player.reset()\n"
        "print(json.dumps([found, [player.act(obs) for obs in json.load(sys.stdin)]]))\n"
    )
    python = isolated(tmp_path)
    steps = [{"agent_0": [0.5 * step] * 14} for step in range(4)]
    done = subprocess.run(
        [python, "act.py"],
        input=json.dumps(steps),
        cwd=out,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = coterie.load(tag / "run").player("agent", mode="greedy")
    expected = [ours.act({name: np.array(x, np.float32) for name, x in obs.items()}) for obs in steps]
    assert json.loads(done.stdout) == [[], expected]


def test_an_export_to_onnx_without_onnxruntime_is_one_line(tag: Path, monkeypatch: pytest.MonkeyPatch):
    player = load_player(tag)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(player.PolicyError, match="onnxruntime is not installed"):
        player._onnx_network(b"")


def test_a_graph_that_onnxruntime_cannot_read_is_one_line(tag: Path):
    player = load_player(tag)
    with pytest.raises(player.PolicyError, match=r"onnxruntime .* cannot read it") as caught:
        player._onnx_network(b"no graph")
    assert "\n" not in str(caught.value)


def test_hidden_states_can_be_taken_out_and_put_back(tag: Path):
    module = load_player(tag)
    whole, cut = (module.Player(tag / "out", mode="greedy") for _ in range(2))
    spaces = {a: r["shape"][0] for p in whole.policies for r in p.roles for a in r["agents"]}
    state: dict[str, Any] = {}
    for step in range(6):
        obs = observations(0, step, spaces)
        cut.set_hidden_state(state)
        assert cut.act(obs) == whole.act(obs)
        state = cut.hidden_state()
        assert set(state) == set(obs)
        assert set(state["agent_0"]) == {"h", "last"}
        assert set(state["adversary_0"]) == {"h", "c"}
