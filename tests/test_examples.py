"""Every example runs, with few steps."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
LEFT = {
    "own_world": ["meeting.gif", "runs/own_world:make/ippo"],
    "own_gymnasium": ["runs/own_gymnasium:Lander/ppo"],
    "own_multiagentenv": ["runs/own_multiagentenv:Beam/vdn"],
    "own_pettingzoo": ["runs/own_pettingzoo:Corridor/ippo"],
    "recurrent": ["runs/particle/simple_reference/mappo"],
    "seeds": ["seeds.png", "runs/seeds/2/curves.png"],
    "train_and_load": ["runs/particle/simple_spread/mappo"],
    "two_teams": ["runs/particle/simple_tag/mappo", "runs/particle/simple_tag/ippo"],
}
"""What each example leaves in the folder where it is called."""


def test_every_example_is_known():
    assert {path.stem for path in EXAMPLES} == set(LEFT)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_its_results(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.setattr(sys, "argv", [str(example), "200"])
    monkeypatch.setattr("coterie.schema.MOST_THREADS", 1)  # so little work is slower with more, and on a busy machine
    threads = torch.get_num_threads()
    runpy.run_path(str(example), run_name="__main__")
    torch.set_num_threads(threads)
    assert capsys.readouterr().out
    for name in LEFT[example.stem]:
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_it_is_called(example: Path):
    text = example.read_text()
    assert f"python examples/{example.name} [STEPS]" in (ast.get_docstring(ast.parse(text)) or "")
    code = text.split('"""', 2)[2].splitlines()
    assert len([line for line in code if line.strip() and not line.strip().startswith("#")]) < 40
