"""`--env NAME` and `env=NAME`, and settings `env.KEY=VALUE`, mean the same in every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.envs import registry
from places import ROOT

NAME = "particle/simple_tag"
SMALL = ("algo=random", "device=cpu", "threads=1", "progress=off")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--cfg", "job", *SMALL],
        ["list", "keys", *SMALL],
        ["evaluate", *SMALL, "--episodes", "2"],
        ["record", *SMALL, "--episodes", "2", "--out", "demos.safetensors"],
        ["play", *SMALL, "--record", "game.zip", "--size", "64"],
        ["league", "random", "scripted", "--episodes", "2"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_both_forms_have_the_same_output(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = []
    settings = ["env.episode_limit=3", "env.obstacles=1"]
    for name in (["--env", NAME], [f"env={NAME}"]):
        assert main([*words, *name, *settings]) == 0
        output = capsys.readouterr().out.splitlines()
        shown.append([line for line in output if "steps/s" not in line])
    assert shown[0] == shown[1]
    assert main([*words, "--env", NAME, "env.obstacle=1"]) == 2
    assert "env.obstacle: no such setting. Did you mean 'env.obstacles'" in capsys.readouterr().err


def test_play_prints_the_return_of_each_team(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    game = ["algo=random", "env=matrix/rock_paper_scissors", "env.episode_limit=4", *SMALL[1:], "--size", "64"]
    for file in (["--video", "game.gif"], ["--record", "game.zip"]):
        assert main(["play", *game, *file, "--episodes", "3"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[0] for line in lines] == ["team return of row", "team return of column"]
        row, column = (float(line.split(": ")[1].split()[0]) for line in lines)
        assert row == -column  # a game with a constant sum of 0
        assert all(line.endswith("(mean and standard error, 3 episodes)") for line in lines)


def test_an_environment_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "env.size=3"]) == 2
    assert "env.size=3: no environment given. Add env=NAME or --env NAME." in capsys.readouterr().err
    for name in ([NAME], ["--env", NAME], [f"env={NAME}"]):
        assert main(["check-env", *name, "env.obstacle=1"]) == 2
        assert "env.obstacle: no such setting. Did you mean 'env.obstacles'" in capsys.readouterr().err
    assert main(["check-env", NAME, "algo=ippo"]) == 2
    assert "algo=ippo: not a setting of the environment" in capsys.readouterr().err


def test_examples_name_environments_that_exist() -> None:
    found = {
        match
        for path in sorted((ROOT / "src" / "coterie" / "cli").glob("*.py"))
        for match in re.findall(r"(?:env=|--env )([a-z]\w*/[\w./-]+)", path.read_text(encoding="utf-8"))
    }
    assert "particle/simple_spread" in found
    for name in sorted(found):
        registry.check_environment(name.rstrip("."))
