"""Mistakes in a user's own environment: one line with the user's file and line, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.__main__ import main
from tinyruns import tiny

LINES = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        self.count = 0
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""
STEP = "return np.zeros(2, np.float32), 1.0, False, False, {}"
CASES = {
    "syntax": ("def step(self, action):", "def step(self, action)", "SyntaxError: expected ':' ({file}, line 10)"),
    "indentation": ("        self.count += 1", "      self.count += 1", "IndentationError: ", "({file}, line 12)"),
    "importing": ("class Env", "np.zeros(3)[7]\nclass Env", "IndexError: ", "({file}:3)"),
    "constructor": ("self.count = 0", "self.count = [1][3]", "IndexError: list index out of range ({file}:7)"),
    "attribute": ("    action_space = gymnasium.spaces.Discrete(2)\n", "", "({file}:3): 'Env' object has no attribute"),
    "shape in step": (STEP, STEP.replace("zeros(2", "zeros(3"), "({file}:10): the environment returned an observation"),
    "shape in reset": ("zeros(2, np.float32), {}", "zeros(5), {}", "({file}:8): the environment returned an observ"),
    "product": ("self.count += 1", "np.zeros(2) @ np.zeros(3)", "failed in a step: ValueError: matmul", "({file}:11)"),
    "reward": (STEP, STEP.replace("1.0", "'high'"), "({file}:10): the reward is 'high' of type str"),
    "four values": (
        STEP,
        STEP.replace("False, False", "False"),
        "({file}:10): step() returned 4 values, expected five",
    ),
    "nothing": (STEP, "pass", "({file}:10): step() returned None, expected five"),
    "late": ("self.count += 1", "self.count += 1 / (self.count < 30)", "ZeroDivisionError", "({file}:11)"),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def _train(module: str, *words: str) -> int:
    return main(["train", *tiny(f"env={module}:Env", "algo=ppo", *words), "out=runs/own/run"])


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_line_with_the_users_file_and_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before, after, *expected = CASES[case]
    assert before in LINES
    module = "own_" + case.replace(" ", "_")
    (tmp_path / f"{module}.py").write_text(LINES.replace(before, after))
    assert _train(module) in {2, 3}
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for words in expected:
        assert words.format(file=f"{module}.py") in message
    assert not (tmp_path / "runs").exists()


def test_the_traceback_option_shows_the_whole_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "own_traced.py").write_text(LINES.replace("self.count = 0", "self.count = [1][3]"))
    assert _train("own_traced", "--traceback") == 3
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback (most recent call last):\n")
    assert "self.count = [1][3]" in errors
    assert _train("own_traced") == 3
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "--traceback shows the whole traceback" in message


@pytest.mark.parametrize("algo", ["ippo", "vdn"])
def test_agents_may_observe_no_numbers(algo: str, tmp_path: Path):
    lines = LINES.replace("(2,)", "(0,)").replace("zeros(2", "zeros(0").replace("False, False", "True, False")
    (tmp_path / "blind.py").write_text(lines)
    assert main(["train", "env=blind:Env", f"algo={algo}", "steps=400", "eval.every=0", "out=runs/own/run"]) == 0
