"""The Unity adapter with the real protocol: mlagents-envs in the helper, and a simulated Unity build.

These tests need the interpreter that `make unity` creates. Run them with `make unity-test`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.checks.environment.contract import check
from coterie.checks.environment.invariants import InvariantChecker, check_spec
from coterie.checks.environment.rules import FindingCollector
from coterie.config.schema import WorkersConfig
from coterie.core.errors import EnvironmentFailedError, UserError
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.traces import first_difference, random_actions
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.unity.client import VARIABLE, find_interpreter
from coterie.envs.make import make
from places import HELPERS

Play = Callable[..., VectorEnv]
STANDIN = HELPERS / "standin.py"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An executable that simulates a Unity build."""
    os.environ[VARIABLE] = python = str(Path(find_interpreter(None)).absolute())
    path = tmp_path_factory.mktemp("build") / "game.x86_64"
    path.write_text(f'#!/bin/sh\nexec "{python}" "{STANDIN}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def play(build: str) -> Iterator[Play]:
    envs: list[VectorEnv] = []

    def make_env(
        scene: str, num_envs: int = 1, seed: int = 0, workers: int = 0, args: tuple[str, ...] = (), **keys: Any
    ):
        keys = {"file": build, "args": ("--scene", scene, *args), "timeout": 20, **keys}
        config = WorkersConfig(count=workers, timeout=30, restarts=2)
        envs.append(make("unity/game", keys, num_envs, seed, workers=config))
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


def play_random(env: VectorEnv, steps: int) -> list[Timestep | Step]:
    timestep, generator = env.reset(), torch.Generator().manual_seed(0)
    found: list[Timestep | Step] = [timestep]
    for _ in range(steps):
        step, timestep = env.step(random_actions(env.spec, timestep, generator))
        found += [step, timestep]
    return found


def steps_of(found: list[Timestep | Step]) -> list[tuple[Step, Timestep]]:
    return list(zip(found[1::2], found[2::2], strict=True))  # pyright: ignore


# -------------------------------------------------------------------------------------------------------------- scenes


def violations_of(env: VectorEnv, steps: int = 50) -> list[str]:
    """Violated rules of timesteps and steps."""
    findings = FindingCollector()
    check_spec(env, env.num_envs, findings)
    invariants, generator = InvariantChecker(env, findings), torch.Generator().manual_seed(0)
    timestep = invariants.check_reset(env.reset())
    for _ in range(steps):
        _, timestep = invariants.check_step(env.step(random_actions(env.spec, timestep, generator)))
    return [f"{finding.name}: {finding.evidence}" for finding in findings.findings()]


@pytest.mark.parametrize("scene", ["areas", "balance", "group", "hybrid", "periods", "images", "soccer"])
def test_every_scene_satisfies_the_contract(play: Play, scene: str):
    assert violations_of(play(scene, episode_limit=35)) == []


def test_the_checker_has_no_findings(build: str):
    """Seeds, resets, independence, actions of dead agents and at final timesteps."""
    keys = {"file": build, "args": ("--scene", "areas"), "episode_limit": 40, "timeout": 20}
    keys["parameters"] = {"interrupts": 1}
    report = check(lambda num_envs, seed: make("unity/game", keys, num_envs, seed), num_envs=2, steps=40)
    found = [f for f in report.findings if f.name not in ("render-missing", "slow")]  # no camera, on a busy machine
    assert not found, report.render()


def test_side_channels_seed_and_arguments_reach_the_build(play: Play):
    keys = {"parameters": {"gravity": 3.5}, "time_scale": 7, "areas": 3, "no_graphics": True}
    env = play("echo", num_envs=2, **keys)
    echoed = env.reset(5).obs["Echo"][:, 0].tolist()
    for time_scale, gravity, _, areas, _, no_graphics in echoed:
        assert (time_scale, gravity, areas, no_graphics) == (7, 3.5, 3, 1)
    assert echoed[0][2] != echoed[1][2]  # every environment has its own seed
    assert echoed[0][4] != echoed[1][4]  # and its own port


def test_a_seed_repeats_the_same_episodes(play: Play):
    one, other = play("balance", num_envs=2), play("balance", num_envs=2)
    first, second = play_random(one, 15), play_random(other, 15)
    assert all(first_difference(a, b) is None for a, b in zip(first, second, strict=True))
    again = play_random(one, 15)
    assert first_difference(first[0], again[0]) is not None  # reset() without a seed continues
    timestep = one.reset(0)
    assert first_difference(timestep, other.reset(0)) is None


def test_ends_are_terminations_and_limits_truncations(play: Play):
    found = steps_of(play_random(play("balance", num_envs=2), 60))
    ends = [
        (step, timestep, env_index)
        for step, timestep in found
        for env_index in range(2)
        if not timestep.acted[env_index]
    ]
    kinds = {(bool(step.terminated[env_index]), bool(step.truncated[env_index])) for step, _, env_index in ends}
    assert kinds == {(True, False), (False, True)}
    for step, timestep, env_index in ends:
        at, age = timestep.obs["Balance"][env_index, 0, :2], round(float(timestep.obs["Balance"][env_index, 0, 2]) * 10)  # pyright: ignore
        assert bool((at.abs() > 1).any()) == bool(step.terminated[env_index])  # the true last observation
        assert step.terminated[env_index] or age == 12


def test_group_rewards_are_given_once_and_members_leave_early(play: Play):
    found = steps_of(play_random(play("group"), 60))
    ended = [(step, timestep) for step, timestep in found if not timestep.acted.item()]
    assert len(ended) > 3
    assert {step.group_reward.item() for step, _ in ended} == {11.0}
    assert {step.group_reward.item() for step, timestep in found if timestep.acted.item()} == {0.0, 1.0}
    assert any(0 < timestep.alive.sum() < 3 for _, timestep in found)
    truncated = steps_of(play_random(play("group", parameters={"limit": 2}), 6))
    assert [step.episode_truncated.item() for step, _ in truncated] == [False, True, False, False, True, False]


def test_sides_have_their_own_roles_and_rewards(play: Play):
    env = play("soccer")
    assert [(role.name, role.group) for role in env.spec.roles] == [
        ("Striker_team0", "team0"), ("Goalie_team0", "team0"), ("Striker_team1", "team1"), ("Goalie_team1", "team1"),
    ]  # fmt: skip
    rewards = {tuple(step.group_reward[0].tolist()) for step, _ in steps_of(play_random(env, 20))}
    assert rewards == {(0, 0), (1, -1)}


def test_hybrid_actions_are_transmitted_exactly_and_obey_masks(play: Play):
    env = play("hybrid")
    timestep = env.reset()
    assert timestep.action_mask["Hybrid"].tolist() == [[[False, True, True, False, True]]]
    action = Action(torch.tensor([[[2, 1]]]), torch.tensor([[[-0.25, 0.5]]]))
    step, _ = env.step({"Hybrid": action})
    assert step.reward.item() == 119.75
    play_random(env, 40)  # the build ends at a disallowed choice
    env.reset()
    step, _ = env.step({"Hybrid": Action(torch.tensor([[[0, 0]]]), torch.zeros(1, 1, 2))})
    assert step.reward.item() == 110  # both are disallowed and replaced by the first allowed ones


@pytest.mark.parametrize("first", [0, 1])
def test_images_are_height_width_channels_for_both_layouts(play: Play, first: int):
    env = play("images", parameters={"first": first})
    observed = play_random(env, 3)[-1].obs["Eyes"]  # pyright: ignore
    assert np.array_equal(observed["Camera"][0, 0].numpy(), np.arange(576).reshape(12, 16, 3) % 256)  # PNG
    assert np.array_equal(observed["Depth_Map"][0, 0].numpy(), np.full((12, 14, 1), round(0.3 * 255)))
    assert observed["numbers"].tolist() == [[[3, -1]]]
    assert env.render(0, 12).shape == (9, 12, 3)


def test_sensors_that_are_not_images_are_an_error_and_can_be_flattened(play: Play):
    bright = {"parameters": {"bright": 30}}
    with pytest.raises(UserError, match=r"sensor 'Depth Map' has values .* env\.flat=\['Depth Map'\]"):
        play_random(play("images", **bright), 3)
    env = play("images", flat=("Depth Map",), **bright)
    assert play_random(env, 3)[-1].obs["Eyes"]["numbers"][0, 0].tolist() == [9.0] * 168 + [3, -1]  # pyright: ignore


def test_agents_with_different_periods_repeat_their_actions(play: Play):
    env = play("periods")
    env.reset()
    act = {"Fast": Action(continuous=torch.full((1, 1, 1), 0.5)), "Slow": Action(continuous=torch.zeros(1, 1, 1))}
    step, timestep = env.step(act)
    assert step.reward.tolist() == [[3, 3]]
    assert timestep.obs["Fast"].tolist() == [[[0.5, 3]]]  # took it three times
    assert timestep.obs["Slow"].tolist() == [[[0, 1]]]


def test_agents_that_appear_take_free_slots(play: Play):
    with pytest.raises(UserError, match=r"Set env\.max_agents\.Agent=2"):
        play_random(play("late"), 5)
    found = steps_of(play_random(play("late", max_agents=2), 30))
    guests = [bool(timestep.alive[0, 1]) for _, timestep in found]
    assert guests[:8] == [False, False, True, True, True, False, False, False]
    assert found[2][0].reward.tolist() == [[1, 0]]  # rewards before its first action are dropped
    assert found[3][0].reward.tolist() == [[1, 7]]


# -------------------------------------------------------------------------------------------------------------- faults


def helpers() -> set[int]:
    """IDs of helper processes and simulated builds."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"standin.py" in command or b"unity/helper.py" in command:
                found.add(int(folder.name))
    return found


def all_ended(before: set[int], seconds: float = 15) -> bool:
    until = time.monotonic() + seconds
    while helpers() - before and time.monotonic() < until:
        time.sleep(0.1)
    return not helpers() - before


def test_a_crash_is_an_error_and_leaves_no_process(play: Play):
    before = helpers()
    with pytest.raises(EnvironmentFailedError, match=r"unity/game' failed: .*return code 7.*log"):
        play_random(play("trouble"), 10)
    assert all_ended(before)


def test_a_hang_is_an_error_and_leaves_no_process(play: Play):
    before = helpers()
    with pytest.raises(EnvironmentFailedError, match=r"Unity did not reply within 2 s"):
        play_random(play("trouble", parameters={"hangs": 1}, timeout=2), 10)
    assert all_ended(before)


def test_a_build_that_never_connects_is_an_error(play: Play):
    before = helpers()
    with pytest.raises(UserError, match=r"could not be started: .*return code 2"):
        play("none", args=("--mlagents-port",))  # hides the port from it
    assert all_ended(before)


def test_a_worker_whose_build_crashes_is_replaced(play: Play, tmp_path: Path):
    before = helpers()
    env = play("trouble", num_envs=2, workers=2, args=("--once", str(tmp_path / "once")), parameters={"at": 6})
    found = steps_of(play_random(env, 20))
    lost = [step.lost for step, _ in found if step.lost is not None]
    assert len(lost) == 1
    assert found[-1][0].reward.isfinite().all()
    env.close()
    assert all_ended(before)


def test_a_used_port_is_skipped_and_that_of_the_editor_is_an_error(play: Play):
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        env = play("echo", num_envs=2, base_port=min(port, 65000))
        ports = env.reset().obs["Echo"][:, 0, 4].tolist()
        assert len({port, *ports}) == 3
        assert all(port < own < port + 64 for own in ports) or port > 65000
    with socket.socket() as used:
        used.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        used.bind(("127.0.0.1", 5004))
        used.listen()
        with pytest.raises(UserError, match=r"port 5004 is in use. The editor supports one environment"):
            coterie.make("unity/editor", timeout=5)


def test_the_connection_of_the_editor_is_kept(build: str):
    """The editor is started by the user and connects to port 5004."""
    editor = subprocess.Popen([build, "--mlagents-port", "5004", "--scene", "bandit"])
    try:
        env = coterie.make("unity/editor", timeout=20)
        found = steps_of(play_random(env, 20))
        assert sum(step.episode_terminated.item() for step, _ in found) == 2
        env.close()
        assert editor.wait(10) == 0  # it was asked to quit only once
    finally:
        editor.kill()
        editor.wait()


@pytest.mark.parametrize("workers", [0, 1])
def test_no_process_survives_a_killed_trainer(build: str, workers: int):
    before = helpers()
    code = f"""
import coterie, time
from coterie.envs.make import make
from coterie.config.schema import WorkersConfig
if __name__ == "__main__":
    keys = {{"file": {build!r}, "args": ("--scene", "bandit"), "timeout": 20}}
    env = make("unity/game", keys, 1, workers=WorkersConfig(count={workers}))
    env.reset()
    print("playing", flush=True)
    time.sleep(600)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "playing\n"
    assert len(helpers() - before) == 2  # a helper and its build
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    assert all_ended(before)


# ------------------------------------------------------------------------------------------------------------ training


def train_on(tmp_path: Path, build: str, *given: str) -> Any:
    from tinyruns import log_entries, train

    keys = ["env=unity/game", f"env.file={build}", "env.timeout=20", "eval.every=0", "checkpoint.every=0", *given]
    train(tmp_path / "run", *keys)
    return log_entries(tmp_path / "run")


def test_ppo_learns_through_the_protocol(build: str, tmp_path: Path):
    """One of three choices is rewarded: a random policy gets 2.7 of 8."""
    entries = train_on(
        tmp_path, build, "algo=ppo", "env.args=[--scene,bandit]", "steps=1600", "num_envs=4", "algo.rollout_length=64",
        "algo.lr=0.01", "algo.hidden_sizes=[16]", "algo.epochs=10", "algo.num_minibatches=1",
    )  # fmt: skip
    returns = [entry["rollout/return_mean"] for entry in entries if "rollout/return_mean" in entry]
    assert returns[0] < 4.5
    assert returns[-1] > 6.5


@pytest.mark.parametrize(
    ("algo", "scene"), [("poca", "group"), ("mappo", "soccer"), ("ppo", "areas"), ("ppo", "images")]
)
def test_algorithms_train_on_every_kind_of_scene(build: str, tmp_path: Path, algo: str, scene: str):
    entries = train_on(
        tmp_path, build, f"algo={algo}", f"env.args=[--scene,{scene}]", "steps=192", "num_envs=2",
        "algo.rollout_length=32", "env.episode_limit=30",
    )  # fmt: skip
    losses = [value for entry in entries for name, value in entry.items() if "loss" in name and name.endswith("policy")]
    assert len(losses) >= 3
    assert np.isfinite(losses).all()
