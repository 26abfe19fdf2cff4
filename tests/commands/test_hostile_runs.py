"""Run folders that were edited, damaged or made by someone else."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import coterie
from coterie.__main__ import main
from coterie.assembly.resolve import require_saved_settings, resolve, saved_settings
from coterie.commands import train as training
from coterie.config.sources import flatten
from coterie.config.trust import code_names, is_address, signature
from coterie.core.errors import UserError
from tinyruns import assert_same, checkpoint_state, folders_of_kills, log_entries, stop_at, tiny, tiny_run, train


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """An unfinished run with at least two checkpoints."""
    return tiny_run(tmp_path / "run", "steps=400", "checkpoint.every=40", stop=150)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock"])
def test_a_symbolic_link_in_a_run_is_refused_and_its_target_is_kept(name: str, stopped: Path, tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_bytes((stopped / name).read_bytes())
    (stopped / name).unlink()
    (stopped / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(UserError, match=rf"{name}: .*a symbolic link, which is not followed"):
        training.resume(stopped, [])
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/segments", "videos"])
def test_a_symbolic_link_in_place_of_a_folder_of_a_run_is_refused(name: str, stopped: Path, tmp_path: Path) -> None:
    target = tmp_path / "others"
    if (stopped / name).exists():
        (stopped / name).rename(target)
    else:
        target.mkdir()
    (stopped / name).symlink_to(target)
    before = sorted(target.rglob("*"))
    with pytest.raises(UserError, match=rf"{name}: it is a symbolic link, which is not followed\. Remove it\.$"):
        training.resume(stopped, [])
    assert sorted(target.rglob("*")) == before


def test_a_link_to_a_file_that_does_not_exist_creates_nothing(stopped: Path, tmp_path: Path) -> None:
    (stopped / "metrics.jsonl").unlink()
    (stopped / "metrics.jsonl").symlink_to(tmp_path / "created")
    with pytest.raises(UserError, match="symbolic link"):
        training.resume(stopped, [])
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_a_file_that_is_replaced_does_not_write_through_links(name: str, stopped: Path, tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("chapter one")
    (stopped / f".writing-{name}").symlink_to(target)
    training.resume(stopped, ["steps=440"])
    assert target.read_text() == "chapter one"


def test_an_edited_configuration_is_refused_with_every_difference(stopped: Path) -> None:
    config = stopped / "config.yaml"
    text = config.read_text()
    edited = re.sub(r"\bgamma: [\d.]+", "gamma: 0.5", re.sub(r"\bepochs: 2\b", "epochs: 3", text))
    config.write_text(edited)
    before = log_entries(stopped)
    with pytest.raises(UserError, match=r"algo\.gamma is 0\.5, was 0\.\d+; algo\.epochs is 3, was 2") as refusal:
        training.resume(stopped, [])
    assert "\n" not in str(refusal.value)
    assert log_entries(stopped) == before
    config.write_text(text)
    training.resume(stopped, [])


def test_a_truncated_configuration_is_refused(stopped: Path) -> None:
    config = stopped / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if line.startswith("num_envs:"))
    config.write_text("".join(lines[:end]))
    with pytest.raises(
        UserError, match=r"config\.yaml: not the settings .* num_envs is \d+, was \d+.*\. Restore the file"
    ):
        training.resume(stopped, [])


def test_a_checkpoint_from_before_a_setting_existed_continues_with_its_default(stopped: Path) -> None:
    words = ["algo=qmix", "env=particle/simple_tag", "teams.adversary.algo=vdn"]
    words += ["teams.adversary.algo.output_gain=0.01"]
    config = resolve(words).config
    new = ("algo.output_gain", "teams.adversary.algo.output_gain", "env.episode_limit", "checkpoint.keep")
    older = {key: value for key, value in saved_settings(config).items() if key not in new}
    assert len(older) == len(saved_settings(config)) - len(new)
    assert require_saved_settings(stopped, config, older) == []
    changed = resolve([*words, "algo.output_gain=1"]).config
    with pytest.raises(UserError, match=r"algo\.output_gain is 1\.0, was null\. Restore"):
        require_saved_settings(stopped, changed, older)
    del older["algo.gamma"]
    with pytest.raises(UserError, match=r"algo\.gamma is 0\.5, was null"):
        require_saved_settings(stopped, resolve([*words, "algo.gamma=0.5"]).config, older)


def test_an_edited_setting_that_may_change_is_said(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("steps: 400 ", "steps: 440 "))
    training.resume(stopped, [])
    assert "config.yaml: steps is 440, was 400 in the checkpoint\n" in capsys.readouterr().err


def test_overrides_of_a_resumed_run_are_no_differences_later(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 250)
        training.resume(stopped, ["steps=440"])
    capsys.readouterr()
    assert training.resume(stopped, []).exit_code == 0
    assert "config.yaml" not in capsys.readouterr().err


def test_a_log_that_is_not_json_is_refused_before_training(stopped: Path) -> None:
    log = stopped / "metrics.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[0] = b"x" * len(lines[0])
    log.write_bytes(b"\n".join(lines))
    before = checkpoint_state(stopped)
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is not a JSON object"):
        training.resume(stopped, [])
    assert_same(before, checkpoint_state(stopped))


def test_a_log_that_is_shorter_than_the_checkpoint_knows_is_said(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = stopped / "metrics.jsonl"
    first = log.read_bytes().split(b"\n")[0] + b"\n"
    log.write_bytes(first)
    training.resume(stopped, [])
    assert f"metrics.jsonl: entries are missing, {len(first)} of the " in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_start_can_be_repeated_until_it_has_a_manifest_and_resumed_afterwards(tmp_path: Path) -> None:
    """Before its manifest `resume` refuses in one line and `train` accepts; then random play is measured again."""
    out = tmp_path / "run"
    kills = folders_of_kills(tmp_path, out, "train", *tiny(), f"out={out}")
    early = [killed for killed in kills if not (killed / "manifest.json").exists()]
    assert any((killed / "config.yaml").exists() for killed in early)
    for killed in early:
        if (killed / "config.yaml").exists():
            with pytest.raises(UserError, match="was interrupted, there is nothing to resume") as refusal:
                training.resume(killed, [])
            assert "\n" not in str(refusal.value)
        train(killed)
        assert checkpoint_state(killed)["steps"] >= 80
    started = kills[len(early)]
    assert '"random"' not in (started / "manifest.json").read_text()
    assert not (started / "metrics.jsonl").exists()
    assert training.resume(started, []).report()["teams"]["team"]["random"] is not None


def test_a_folder_with_files_of_the_user_is_not_an_interrupted_start(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match="already contains files"):
        train(out)
    assert (out / "config.yaml").read_text() == "seed: 1\n"


@pytest.mark.usefixtures("curves")
def test_resume_of_a_finished_run_draws_missing_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    drawn: list[Path] = []
    monkeypatch.setattr("coterie.runs.plots.plot", lambda runs, target: drawn.append(target))
    train(out)
    assert drawn == [out / "curves.png"]
    drawn.clear()
    assert main(["resume", str(out)]) == 0
    assert drawn == [out / "curves.png"]


# ------------------------------------------------------------------------------------------------ corrupt checkpoints

RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "eval.every=40", "checkpoint.every=40", "steps=120")


@pytest.fixture
def corrupt(tmp_path: Path) -> Path:
    """A run of two teams whose best and last checkpoints are corrupt, but not all."""
    out = tmp_path / "rps"
    tiny_run(out, *RPS, "checkpoint.keep=true")
    folder = out / "checkpoints"
    names = {(folder / pointer).read_text().strip() for pointer in ("best", "best-row", "best-column", "last")}
    for name in names:
        file = folder / name / "state.safetensors"
        file.write_bytes(file.read_bytes()[:-10])
    return out


COMMANDS = {
    "evaluate": ["evaluate", "{run}", "--episodes=4", "--json"],
    "record": ["record", "{run}", "--episodes=4", "--out={out}/demos", "--json"],
    "league": ["league", "{run}", "random", "--episodes=4", "--out={out}/league.png", "--json"],
    "exploit": ["exploit", "{run}", "--steps=40", "--episodes=4", "eval.every=0", "out={out}/response", "--json"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_another_checkpoint_than_a_corrupt_one_is_used_with_a_warning(
    command: str, corrupt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(run=corrupt, out=tmp_path) for word in COMMANDS[command]]
    assert main(words) == 0
    output, errors = capsys.readouterr()
    assert "corrupt, state.safetensors does not match its hash" in errors
    report = json.loads(output)
    warnings = report.get("warnings") or report["origin"]["warnings"]
    assert len(warnings) == (2 if command == "league" else 1)  # each side of a league has its own best checkpoint
    for warning in warnings:
        assert re.search(
            r"corrupt, state\.safetensors does not match its hash.*Using the checkpoint of \d+ steps\.", warning
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "command"),
    [("best", "record"), ("best", "league"), ("best", "exploit"), ("last", "evaluate"), ("steps", "evaluate")],
)
def test_a_corrupt_checkpoint_that_is_named_is_refused(
    checkpoint: str, command: str, corrupt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = str(int((corrupt / "checkpoints" / "last").read_text()))
    words = [word.format(run=corrupt, out=tmp_path) for word in COMMANDS[command]]
    assert main([*words, f"--checkpoint={steps if checkpoint == 'steps' else checkpoint}"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert "corrupt, state.safetensors does not match its hash" in errors
    assert errors.count("\n") == 1


def test_a_frozen_team_warns_of_a_corrupt_checkpoint_and_refuses_a_named_one(
    corrupt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = ("env=matrix/rock_paper_scissors", f"teams.column.run={corrupt}")
    train(tmp_path / "auto", *frozen)
    assert "corrupt, state.safetensors does not match its hash" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--checkpoint best: .*corrupt"):
        train(tmp_path / "best", *frozen, "teams.column.algo.checkpoint=best")


def test_an_intact_run_has_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, settings in (("run", ()), ("unevaluated", ("eval.every=0",))):
        train(tmp_path / name, *settings)
        capsys.readouterr()
        assert main(["evaluate", str(tmp_path / name), "--episodes=4", "--json"]) == 0
        output, errors = capsys.readouterr()
        assert json.loads(output)["warnings"] == []
        (line,) = errors.splitlines()
        assert line.startswith("coterie: checkpoint: ")


# ------------------------------------------------------------------------------------------------- code named by a run

COUNTER = ("env=worlds:counter", "algo=ippo", "eval.every=0")


@pytest.fixture(scope="module")
def foreign_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a user's environment that was created with another key."""
    folder = tmp_path_factory.mktemp("other-user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        train(folder / "foreign", *COUNTER)
    return folder / "foreign"


@pytest.fixture
def foreign(foreign_once: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(foreign_once, tmp_path / "foreign"))


OPENING = {
    "evaluate": ["evaluate", "{run}", "--episodes=4"],
    "play": ["play", "{run}", "--video={out}/out.mp4"],
    "record": ["record", "{run}", "--episodes=4", "--out={out}/demos"],
    "resume": ["resume", "{run}", "steps=160"],
    "league": ["league", "{run}", "random", "--episodes=4"],
    "exploit": ["exploit", "{run}"],
    "frozen": ["train", *tiny(*COUNTER), "teams.walkers.run={run}", "out={out}/new"],
}


@pytest.mark.parametrize("command", OPENING)
def test_a_run_of_someone_else_that_names_code_is_refused(
    command: str, foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(run=foreign, out=tmp_path) for word in OPENING[command]]
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "names code outside Coterie (env.name=worlds:counter) and was not created by you on this machine" in errors
    assert errors.count("\n") == 1


def test_code_of_an_untrusted_run_is_not_imported(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with `--trust`, the module is imported."""
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()\ndef make(**_): raise ValueError('made')\n")
    config = foreign / "config.yaml"
    config.write_text(config.read_text().replace("worlds:counter", "evil:make"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["evaluate", str(foreign)]) == 2
    assert not (tmp_path / "imported").exists()
    assert main(["evaluate", str(foreign), "--trust"]) == 3  # the factory raises
    assert (tmp_path / "imported").exists()


def test_a_run_of_someone_else_can_be_trusted(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["evaluate", str(foreign), "--episodes=4", "--trust"]) == 0
    assert main(["evaluate", str(foreign), "--episodes=4"]) == 2  # only for that command
    monkeypatch.setenv("COTERIE_TRUST", "1")
    assert coterie.evaluate(foreign, episodes=4)["episodes"] == 4


def test_an_own_run_is_trusted_after_it_was_moved_and_resumed(tmp_path: Path) -> None:
    train(tmp_path / "run", *COUNTER)
    training.resume(tmp_path / "run", ["steps=160"])
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert main(["evaluate", str(tmp_path / "moved"), "--episodes=4"]) == 0


def test_an_own_run_whose_settings_were_edited_is_not_trusted(tmp_path: Path) -> None:
    train(tmp_path / "run", *COUNTER)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(re.sub(r"\bseed: 0\b", "seed: 1", config.read_text()))
    with pytest.raises(UserError, match="names code outside Coterie"):
        training.resume(tmp_path / "run", [])


@pytest.mark.parametrize(
    "settings",
    [
        {"env.name": "pond:make"},
        {"env.name": "gym/pond:Pond-v0"},
        {"env.name": "unity/build"},
        {"algo.name": "own:Learner"},
        {"teams.a.algo.name": "own:Learner"},
        {"algo.network": "own:make", "algo.critic_network": "own:make", "algo.mixer": "own:Mixer"},
        {"algo.script": "own:act"},
        {"teams.a.algo.script": "own:act"},
    ],
)
def test_settings_that_name_code_are_found(settings: dict[str, str]) -> None:
    assert code_names(settings) == [f"{key}={value}" for key, value in settings.items()]
    assert code_names({"env.name": "gym/CartPole-v1", "algo.name": "mappo", "algo.script": "flee", "out": "a:b"}) == []


def test_modules_in_run_folders_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "trap.py").write_text("open('imported', 'w').close()\ndef make(**_): ...\n")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.syspath_prepend(str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"module 'trap' is in the run folder .*run\. Move it elsewhere"):
        train(tmp_path / "new", "env=trap:make")
    assert not (tmp_path / "run" / "imported").exists()


def test_the_key_is_private_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first = signature({"seed": 1})
    key = tmp_path / "state" / "coterie" / "key"
    assert key.stat().st_mode & 0o077 == 0
    assert len(key.read_bytes()) == 32
    assert signature({"seed": 1}) == first != signature({"seed": 2})
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert signature({"seed": 1}) is None


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"env.name": "pettingzoo/trap"}, ["env.name=pettingzoo/trap"]),
        ({"env.name": "pettingzoo/mpe2.simple_spread_v3"}, []),
        ({"env.name": "pettingzoo/butterfly.pistonball_v6"}, []),
        ({"workers.address": "local", "log.mlflow_uri": "sqlite:///runs.db"}, []),
        ({"log.mlflow_uri": "http://evil:5000"}, ["log.mlflow_uri=http://evil:5000"]),
        ({"log.mlflow_uri": "databricks"}, ["log.mlflow_uri=databricks"]),
        ({"env.name": "gym/CartPole-v1", "workers.address": "evil:6379"}, ["workers.address=evil:6379"]),
        ({"env.name": "gym/CartPole-v1", "workers.address": "auto"}, []),
    ],
)
def test_modules_of_pettingzoo_names_and_ray_clusters_are_code(settings: dict[str, str], found: list[str]) -> None:
    assert code_names(settings) == found


def _with_environment(run: Path, name: str) -> None:
    config = run / "config.yaml"
    config.write_text(re.sub(r"env:\n(  .*\n)+", f"env:\n  name: {name}\n", config.read_text()))


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that must not be imported, next to a run."""
    (tmp_path / "trap.py").write_text("raise RuntimeError('imported')\n")
    tiny_run(tmp_path / "run")
    monkeypatch.setattr("sys.path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pettingzoo_module_of_an_untrusted_run_is_not_imported(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_environment(trap / "run", "pettingzoo/trap")
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    assert "names code outside Coterie (env.name=pettingzoo/trap)" in capsys.readouterr().err


def test_an_untrusted_ray_cluster_is_not_connected_to(trap: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_environment(trap / "run", "gym/CartPole-v1")
    config = trap / "run" / "config.yaml"
    config.write_text(config.read_text().replace("address: local", "address: 127.0.0.1:1"))
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    assert "names code outside Coterie (workers.address=127.0.0.1:1)" in capsys.readouterr().err


def test_an_address_that_a_stranger_changed_is_not_signed_and_an_own_one_is(
    stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_TRUST", raising=False)
    config = stopped / "config.yaml"
    own = config.read_text()
    assert "mlflow_uri: null" in own
    config.write_text(own.replace("mlflow_uri: null", "mlflow_uri: http://evil:5000"))
    assert main(["resume", str(stopped)]) == 2
    assert "names a server outside Coterie (log.mlflow_uri=http://evil:5000)" in capsys.readouterr().err
    config.write_text(own)
    training.resume(stopped, ["log.mlflow_uri=http://127.0.0.1:1", "steps=430"])  # mlflow is off
    assert main(["evaluate", str(stopped), "--episodes", "2"]) == 0


def test_all_settings_that_are_addresses_need_trust() -> None:
    """New settings with such names must be added to `is_address`, or to this list with a reason."""
    keys = [key for key, _ in flatten(resolve(["algo=mappo", "env=particle/simple_spread"]).config.tree())]
    words = ("address", "uri", "url", "host", "server", "endpoint", "port")
    found = {key for key in keys if any(word in key.rpartition(".")[2].split("_") for word in words)}
    assert found == {key for key in keys if is_address(key, "http://evil:1")}
    assert found == {"workers.address", "log.mlflow_uri"}


@pytest.mark.parametrize("env", ["vmas/balance", "smaclite/2s3z"])
def test_packages_are_not_imported_from_the_current_folder_without_trust(
    env: str, trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = env.partition("/")[0]
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    (trap / f"{package}.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
    _with_environment(trap / "run", env)
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    assert not (trap / "imported").exists()


def test_plugins_are_not_searched_in_the_current_folder_without_trust(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = trap / "lure-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lure\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[coterie.environments]\nworld = trap:make\n")
    _with_environment(trap / "run", "lure/world")
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    assert "there is no environment 'lure/world'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.inner.trap:make", "gym/run.trap:X-v0", "pettingzoo/run.trap"])
def test_modules_below_packages_without_a_file_are_not_imported_from_run_folders(
    name: str, trap: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trap / "run" / "inner").mkdir()
    for folder in (trap / "run", trap / "run" / "inner"):
        (folder / "trap.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
    _with_environment(trap / "run", name)
    assert main(["evaluate", "run", "--episodes", "1", "--trust"]) == 2
    assert "is in the run folder" in capsys.readouterr().err
    assert not (trap / "imported").exists()


def test_functions_of_the_standard_library_that_a_module_imports_are_no_environments(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trap / "helpful.py").write_text("from subprocess import Popen, run\n")
    for name in ("run", "Popen"):
        assert main(["check-env", f"helpful:{name}", "env.args=false"]) == 2
        assert f"{name} belongs to Python's standard library" in capsys.readouterr().err
