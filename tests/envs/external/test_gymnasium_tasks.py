"""Gymnasium's Box2D and MuJoCo tasks: spaces, limits, images, and missing libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec
from coterie.envs.make import make, spec_of


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes a log of warnings to the working directory."""
    monkeypatch.chdir(tmp_path)


def numbers(n: int, most: float = 1) -> ActionSpec:
    return ActionSpec((), n, (-most,) * n, (most,) * n)


@pytest.mark.parametrize(
    ("name", "observation", "action", "limit"),
    [
        ("Acrobot-v1", (6,), ActionSpec((3,)), 500),
        ("Pendulum-v1", (3,), numbers(1, 2), 200),
        ("CarRacing-v3", (96, 96, 3), ActionSpec((), 3, (-1, 0, 0), (1, 1, 1)), 1000),
        ("BipedalWalkerHardcore-v3", (24,), numbers(4), 2000),
        ("LunarLanderContinuous-v3", (8,), numbers(2), 1000),
    ],
)
def test_tasks_have_the_documented_spaces_and_limits(name: str, observation: tuple, action: ActionSpec, limit: int):
    spec = spec_of(f"gym/{name}")
    (role,) = spec.roles
    assert (role.observation_space.shape, role.action, spec.episode_limit) == (observation, action, limit)


@pytest.mark.slow
def test_box2d_can_be_loaded_where_warnings_are_errors():
    code = "from coterie.envs.make import make; print(make('gym/LunarLander-v3').reset().obs['agent'].shape)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == "torch.Size([1, 1, 8])\n", done.stderr


def without(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    """Simulates that libraries are not installed."""
    users = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")
    for module in list(sys.modules):
        if module.startswith(users) or module.partition(".")[0] in libraries:
            monkeypatch.delitem(sys.modules, module)
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)


def test_a_missing_library_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, "Box2D", "mujoco")
    for name, package in (("LunarLander-v3", "box2d"), ("Hopper-v5", "mujoco")):
        with pytest.raises(UserError, match=rf"is not installed. Install it with: .*\[{package}\]"):
            make(f"gym/{name}")


@pytest.mark.parametrize("name", ["LunarLander-v3", "CarRacing-v3"])
def test_box2d_renders_without_a_screen(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    env = make(f"gym/{name}")
    env.reset()
    picture = env.render(0, 90)
    assert picture.shape == (60, 90, 3)
    assert len(np.unique(picture)) > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a partly constructed viewer
def test_mujoco_without_opengl_reports_the_variable_to_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", "paper")
    env = make("gym/Hopper-v5")
    env.reset()
    with pytest.raises(UserError, match=r"gym/Hopper-v5: rendering failed .* Set MUJOCO_GL=egl"):
        env.render()


def test_the_list_of_environments_reports_missing_libraries(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    without(monkeypatch, "Box2D")
    assert main(["list", "envs"]) == 0
    output, errors = capfd.readouterr()
    assert errors == ""  # no progress without a terminal
    assert "environment 'gym/BipedalWalker-v3': Box2D is not installed" in output
    assert "(and 4 others)" in " ".join(output.split())  # one line for the five environments of Box2D
    assert "environment 'gym/CartPole-v1'" not in output


def test_only_warnings_about_gymnasium_s_own_models_are_suppressed(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    make("gym/HalfCheetah-v5").close()
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir())
    old = "<mujoco><compiler settotalmass='1'/><worldbody><body><geom size='1'/></body></worldbody></mujoco>"
    mujoco.MjModel.from_xml_string(old)
    assert "settotalmass" in capfd.readouterr().err
