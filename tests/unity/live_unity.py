"""Unity by the real protocol: mlagents-envs in the helper, and the stand-in in Unity's place.

These need the interpreter that `make unity` makes, so they are not part of the plain run: `make unity-test`.
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
from coterie.envs.check import check
from coterie.envs.findings import RULES, Notebook
from coterie.envs.make import make
from coterie.envs.paths import difference, random_actions
from coterie.envs.rules import Watch, check_spec
from coterie.envs.unity.player import VARIABLE, interpreter
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.types import Action, Row, Step

Play = Callable[..., VectorEnv]
STANDIN = Path(__file__).with_name("standin.py")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An executable in Unity's place."""
    os.environ[VARIABLE] = python = str(Path(interpreter(None)).absolute())
    path = tmp_path_factory.mktemp("build") / "game.x86_64"
    path.write_text(f'#!/bin/sh\nexec "{python}" "{STANDIN}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def play(build: str) -> Iterator[Play]:
    opened: list[VectorEnv] = []

    def made(scene: str, copies: int = 1, seed: int = 0, workers: int = 0, args: tuple[str, ...] = (), **keys: Any):
        keys = {"file": build, "args": ("--scene", scene, *args), "timeout": 20, **keys}
        some = WorkersConfig(count=workers, timeout=30, restarts=2)
        opened.append(make("unity/game", keys, copies, seed, workers=some))
        return opened[-1]

    yield made
    for env in opened:
        env.close()


def played(env: VectorEnv, steps: int) -> list[Row | Step]:
    row, generator = env.reset(), torch.Generator().manual_seed(0)
    found: list[Row | Step] = [row]
    for _ in range(steps):
        step, row = env.step(random_actions(env.spec, row, generator))
        found += [step, row]
    return found


def steps_of(found: list[Row | Step]) -> list[tuple[Step, Row]]:
    return list(zip(found[1::2], found[2::2], strict=True))  # pyright: ignore


# -------------------------------------------------------------------------------------------------------------- scenes


def watched(env: VectorEnv, steps: int = 50) -> list[str]:
    """Which rules of the contract rows and steps break."""
    book = Notebook(RULES)
    check_spec(env, env.copies, book)
    watch, generator = Watch(env, book), torch.Generator().manual_seed(0)
    row = watch.begin(env.reset())
    for _ in range(steps):
        _, row = watch.step(env.step(random_actions(env.spec, row, generator)))
    return [f"{finding.rule}: {finding.what}" for finding in book.findings()]


@pytest.mark.parametrize("scene", ["areas", "balance", "group", "hybrid", "periods", "pictures", "soccer"])
def test_rows_and_steps_of_every_scene_keep_the_contract(play: Play, scene: str):
    assert watched(play(scene, episode_limit=35)) == []


def test_the_checker_finds_nothing(build: str):
    """Seeds, resets, copies, dead agents' actions, closing rows: a dozen environments live through the same."""
    keys = {"file": build, "args": ("--scene", "areas"), "episode_limit": 40, "timeout": 20}
    keys["parameters"] = {"interrupts": 1}
    report = check(lambda copies, seed: make("unity/game", keys, copies, seed), copies=2, steps=40)
    found = [f for f in report.findings if f.rule not in ("render-missing", "slow")]  # no camera, on a busy machine
    assert not found, report.render()


def test_side_channels_the_seed_and_flags_of_the_start_reach_the_build(play: Play):
    keys = {"parameters": {"gravity": 3.5}, "time_scale": 7, "areas": 3, "no_graphics": True}
    env = play("echo", copies=2, **keys)
    said = env.reset(5).obs["Echo"][:, 0].tolist()
    for time_scale, gravity, _, areas, _, no_graphics in said:
        assert (time_scale, gravity, areas, no_graphics) == (7, 3.5, 3, 1)
    assert said[0][2] != said[1][2]  # each copy has a seed
    assert said[0][4] != said[1][4]  # and a port of its own


def test_a_seed_begins_the_same_episodes_anew(play: Play):
    one, other = play("balance", copies=2), play("balance", copies=2)
    first, second = played(one, 15), played(other, 15)
    assert all(difference(a, b) is None for a, b in zip(first, second, strict=True))
    again = played(one, 15)
    assert difference(first[0], again[0]) is not None  # reset() without a seed goes on
    row = one.reset(0)
    assert difference(row, other.reset(0)) is None


def test_ends_are_terminated_and_limits_truncated(play: Play):
    found = steps_of(played(play("balance", copies=2), 60))
    ends = [(step, row, copy) for step, row in found for copy in range(2) if not row.acted[copy]]
    kinds = {(bool(step.terminated[c]), bool(step.truncated[c])) for step, _, c in ends}
    assert kinds == {(True, False), (False, True)}
    for step, row, copy in ends:
        at, age = row.obs["Balance"][copy, 0, :2], round(float(row.obs["Balance"][copy, 0, 2]) * 10)  # pyright: ignore
        assert bool((at.abs() > 1).any()) == bool(step.terminated[copy])  # the true last observation
        assert step.terminated[copy] or age == 12


def test_groups_are_paid_once_and_members_leave_early(play: Play):
    found = steps_of(played(play("group"), 60))
    ended = [(step, row) for step, row in found if not row.acted.item()]
    assert len(ended) > 3
    assert {step.group_reward.item() for step, _ in ended} == {11.0}
    assert {step.group_reward.item() for step, row in found if row.acted.item()} == {0.0, 1.0}
    assert any(0 < row.alive.sum() < 3 for _, row in found)
    cut = steps_of(played(play("group", parameters={"limit": 2}), 6))
    assert [step.episode_truncated.item() for step, _ in cut] == [False, True, False, False, True, False]


def test_sides_have_their_own_roles_and_rewards(play: Play):
    env = play("soccer")
    assert [(role.name, role.group) for role in env.spec.roles] == [
        ("Striker_team0", "team0"), ("Goalie_team0", "team0"), ("Striker_team1", "team1"), ("Goalie_team1", "team1"),
    ]  # fmt: skip
    paid = {tuple(step.group_reward[0].tolist()) for step, _ in steps_of(played(env, 20))}
    assert paid == {(0, 0), (1, -1)}


def test_hybrid_actions_arrive_as_they_were_meant_and_obey_masks(play: Play):
    env = play("hybrid")
    row = env.reset()
    assert row.action_mask["Hybrid"].tolist() == [[[False, True, True, False, True]]]
    action = Action(torch.tensor([[[2, 1]]]), torch.tensor([[[-0.25, 0.5]]]))
    step, _ = env.step({"Hybrid": action})
    assert step.reward.item() == 119.75
    played(env, 40)  # the build ends itself at a barred choice
    env.reset()
    step, _ = env.step({"Hybrid": Action(torch.tensor([[[0, 0]]]), torch.zeros(1, 1, 2))})
    assert step.reward.item() == 110  # both are barred: the first that is not, of each


@pytest.mark.parametrize("first", [0, 1])
def test_pictures_are_shown_height_by_width_whatever_unity_says(play: Play, first: int):
    env = play("pictures", parameters={"first": first})
    seen = played(env, 3)[-1].obs["Eyes"]  # pyright: ignore
    assert np.array_equal(seen["Camera"][0, 0].numpy(), np.arange(576).reshape(12, 16, 3) % 256)  # PNG
    assert np.array_equal(seen["Depth_Map"][0, 0].numpy(), np.full((12, 14, 1), round(0.3 * 255)))
    assert seen["numbers"].tolist() == [[[3, -1]]]
    assert env.render(0, 12).shape == (9, 12, 3)


def test_numbers_that_are_no_picture_are_told_and_can_be_taken_flat(play: Play):
    bright = {"parameters": {"bright": 30}}
    with pytest.raises(UserError, match=r"sensor 'Depth Map' shows numbers .* env\.flat=\['Depth Map'\]"):
        played(play("pictures", **bright), 3)
    env = play("pictures", flat=("Depth Map",), **bright)
    assert played(env, 3)[-1].obs["Eyes"]["numbers"][0, 0].tolist() == [9.0] * 168 + [3, -1]  # pyright: ignore


def test_agents_with_other_periods_hold_their_actions(play: Play):
    env = play("periods")
    env.reset()
    act = {"Fast": Action(continuous=torch.full((1, 1, 1), 0.5)), "Slow": Action(continuous=torch.zeros(1, 1, 1))}
    step, row = env.step(act)
    assert step.reward.tolist() == [[3, 3]]
    assert row.obs["Fast"].tolist() == [[[0.5, 3]]]  # did it three times
    assert row.obs["Slow"].tolist() == [[[0, 1]]]


def test_agents_that_appear_take_free_slots(play: Play):
    with pytest.raises(UserError, match=r"set env\.max_agents\.Agent=2"):
        played(play("late"), 5)
    found = steps_of(played(play("late", max_agents=2), 30))
    guests = [bool(row.alive[0, 1]) for _, row in found]
    assert guests[:8] == [False, False, True, True, True, False, False, False]
    assert found[2][0].reward.tolist() == [[1, 0]]  # what it was paid before it acted is nobody's
    assert found[3][0].reward.tolist() == [[1, 7]]


# -------------------------------------------------------------------------------------------------------------- faults


def helpers() -> set[int]:
    """Numbers of the processes that speak to a stand-in, or are one."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                said = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"standin.py" in said or b"unity/relay.py" in said:
                found.add(int(folder.name))
    return found


def gone(before: set[int], seconds: float = 15) -> bool:
    until = time.monotonic() + seconds
    while helpers() - before and time.monotonic() < until:
        time.sleep(0.1)
    return not helpers() - before


def test_a_crash_is_told_and_leaves_nothing_behind(play: Play):
    before = helpers()
    with pytest.raises(UserError, match=r"unity/game' failed: .*return code 7: its own log says why"):
        played(play("trouble"), 10)
    assert gone(before)


def test_a_hang_is_told_and_leaves_nothing_behind(play: Play):
    before = helpers()
    with pytest.raises(UserError, match=r"Unity did not answer within 2 s"):
        played(play("trouble", parameters={"hangs": 1}, timeout=2), 10)
    assert gone(before)


def test_a_build_that_never_calls_is_told(play: Play):
    before = helpers()
    with pytest.raises(UserError, match=r"could not be started: .*return code 2"):
        play("none", args=("--mlagents-port",))  # so that it does not know its port
    assert gone(before)


def test_a_worker_whose_build_crashes_is_replaced_and_training_goes_on(play: Play, tmp_path: Path):
    before = helpers()
    env = play("trouble", copies=2, workers=2, args=("--once", str(tmp_path / "once")), parameters={"at": 6})
    found = steps_of(played(env, 20))
    lost = [step.lost for step, _ in found if step.lost is not None]
    assert len(lost) == 1
    assert found[-1][0].reward.isfinite().all()
    env.close()
    assert gone(before)


def test_a_port_in_use_is_passed_over_and_the_editors_is_told(play: Play):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        env = play("echo", copies=2, base_port=min(port, 65000))
        ports = env.reset().obs["Echo"][:, 0, 4].tolist()
        assert len({port, *ports}) == 3
        assert all(port < own < port + 64 for own in ports) or port > 65000
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 5004))
        taken.listen()
        with pytest.raises(UserError, match=r"port 5004 is in use: the editor serves one copy"):
            coterie.make("unity/editor", timeout=5)


def test_the_editor_calls_by_itself_and_its_line_is_kept(build: str):
    """It is one that was started by hand and calls at port 5004."""
    editor = subprocess.Popen([build, "--mlagents-port", "5004", "--scene", "bandit"])
    try:
        env = coterie.make("unity/editor", timeout=20)
        rows = played(env, 20)
        assert sum(step.episode_terminated.item() for step, _ in steps_of(rows)) == 2
        env.close()
        assert editor.wait(10) == 0  # told to quit, once only
    finally:
        editor.kill()
        editor.wait()


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_outlives_a_trainer_that_is_killed(build: str, workers: int):
    before = helpers()
    code = f"""
import coterie, time
from coterie.envs.findings import RULES, Notebook
from coterie.envs.make import make
from coterie.schema import WorkersConfig
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
    assert gone(before)


# ------------------------------------------------------------------------------------------------------------ training


def trained(tmp_path: Path, build: str, *given: str) -> Any:
    from tinyruns import rows_of, train

    keys = ["env=unity/game", f"env.file={build}", "env.timeout=20", "eval.every=0", "checkpoint.every=0", *given]
    train(tmp_path / "run", *keys)
    return rows_of(tmp_path / "run")


def test_ppo_learns_through_the_protocol(build: str, tmp_path: Path):
    """Three choices, one of which pays: a random policy earns 2.7 of 8."""
    rows = trained(
        tmp_path, build, "algo=ppo", "env.args=[--scene,bandit]", "steps=1600", "copies=4", "algo.horizon=64",
        "algo.lr=0.01", "algo.hidden=[16]", "algo.epochs=10", "algo.minibatches=1",
    )  # fmt: skip
    returns = [row["rollout/return_mean"] for row in rows if "rollout/return_mean" in row]
    assert returns[0] < 4.5
    assert returns[-1] > 6.5


@pytest.mark.parametrize(
    ("algo", "scene"), [("poca", "group"), ("mappo", "soccer"), ("ppo", "areas"), ("ppo", "pictures")]
)
def test_algorithms_train_on_every_kind_of_scene(build: str, tmp_path: Path, algo: str, scene: str):
    rows = trained(
        tmp_path, build, f"algo={algo}", f"env.args=[--scene,{scene}]", "steps=192", "copies=2", "algo.horizon=32",
        "env.episode_limit=30",
    )  # fmt: skip
    losses = [value for row in rows for name, value in row.items() if "loss" in name and name.endswith("policy")]
    assert len(losses) >= 3
    assert np.isfinite(losses).all()
