"""The last lines of `coterie train`, and options and advice that work."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from coterie.__main__ import main
from coterie.assembly import build
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.core.files import disk_error
from coterie.runs.folder import default_parent
from tinyruns import tiny

SMALL = ["steps=40", "num_envs=4", "threads=1", "eval.episodes=4", "eval.num_envs=4", "log.tensorboard=false"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_silent_run_prints_its_folder_and_its_result(capsys: pytest.CaptureFixture[str]):
    assert main(["train", *tiny("progress=off"), "out=mine"]) == 0
    captured = capsys.readouterr()
    first, second, third = captured.out.splitlines()
    assert first == "mine: 80 steps"
    assert second.startswith("team return in evaluation -")
    assert ", highest -" in second
    assert ", random policy -" in second
    assert third.endswith("). Examine the run: coterie diagnose mine")  # it took 4 gradient steps
    assert captured.err == ""
    assert main(["resume", "mine", "steps=120"]) == 0
    assert capsys.readouterr().out.startswith("mine: 156 steps\n")
    assert main(["resume", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "mine"


@pytest.mark.parametrize(
    ("words", "algo", "env"),
    [
        (["algo=MAPPO"], "mappo", "particle/simple_spread"),
        (["algo=mappo", "algo=IPPO"], "ippo", "particle/simple_spread"),
        (["algo=Ippo/Yardstick", "env=Particle/Simple_Tag"], "ippo/yardstick", "particle/simple_tag"),
    ],
)
def test_capital_letters_in_names_are_forgiven(words: list[str], algo: str, env: str):
    config = resolve(words).config
    assert (config.algo.name, config.env.name) == (algo, env)
    teams = resolve(["env=particle/simple_tag", "teams.agent.algo=QMIX"]).config.teams
    assert teams["agent"].algo.name == "qmix"


def test_default_folders_have_names_for_shells_and_scp():
    assert default_parent("my_lab.pond:make", "mine.algo:Best One") == Path("runs/my_lab.pond_make/mine.algo_Best_One")
    assert default_parent("../x", "-rf") == Path("runs/_/x/rf")
    assert default_parent("python:f<é>", "ppo") == Path("runs/python_f_/ppo")
    assert default_parent("particle/simple_spread", "ippo/yardstick") == Path(
        "runs/particle/simple_spread/ippo/yardstick"
    )


def test_advice_for_a_full_disk_names_the_run(tmp_path: Path):
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert str(disk_error("the file", run / "metrics.jsonl", full)).endswith("Free some space, then start again.")
    for name in ("config.yaml", "manifest.json"):
        (run / name).touch()
    for path in (run / "metrics.jsonl", run / "checkpoints" / "000" / "tensors", run):
        message = str(disk_error("the file", path, full))
        assert message.endswith(f"Free some space, then continue with `coterie resume '{run}'`.")


def test_many_environments_are_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "free_bytes", lambda store, device: 10**9)
    cpu = torch.device("cpu")
    build.require_memory(resolve(["num_envs=2000"]).config, cpu)
    huge = resolve(["num_envs=10M", "algo.rollout_length=99"]).config
    with pytest.raises(UserError) as caught:
        build.require_memory(huge, cpu)
    message = str(caught.value)
    assert message.startswith("num_envs=10000000: the observations of a rollout of 99 steps alone need ")
    most = int(message.partition("about num_envs=")[2].partition(",")[0])
    build.require_memory(resolve([f"num_envs={most}", "algo.rollout_length=99"]).config, cpu)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    divided = resolve(["num_envs=10M", "algo.rollout_length=99", "ranks=50"]).config  # on 25 machines
    with pytest.raises(UserError, match="of memory, and") as caught:
        build.require_memory(divided, cpu)
    most_divided = int(str(caught.value).partition("about num_envs=")[2].partition(",")[0])
    assert most_divided == pytest.approx(25 * most, rel=1e-3)
    build.require_memory(divided.model_copy(update={"num_envs": most_divided}), cpu)
    monkeypatch.setattr(build, "free_bytes", lambda store, device: None)  # unknown
    build.require_memory(huge, cpu)


def test_train_has_the_option_that_its_error_suggests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_world.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n", encoding="utf-8"
    )
    words = [*tiny("env=their_world:make", "algo=ppo", "steps=40", "env.episode_limit=10")]
    assert main(["train", *words, "out=theirs"]) == 0
    manifest = json.loads(Path("theirs/manifest.json").read_text())
    Path("theirs/manifest.json").write_text(json.dumps(manifest | {"signature": "0" * 64}))
    capsys.readouterr()
    words = ["env=their_world:make", "env.episode_limit=10", "algo=frozen", "algo.run=theirs", *SMALL]
    assert main(["train", *words, "out=mine"]) == 2
    assert "add --trust" in capsys.readouterr().err
    assert main(["train", *words, "out=mine", "--trust"]) == 0
