"""Runs that start with the weights of another run."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.__main__ import main
from coterie.assembly.build import build
from coterie.assembly.resolve import load_resolved, resolve
from coterie.assembly.warm_start import WarmStart, warm_start
from coterie.commands import train as training
from coterie.commands.best_response import exploit
from coterie.core.errors import UserError
from coterie.runs.checkpoints import Checkpoints, load
from tinyruns import REPLAY, assert_resumes_exactly, assert_same, tiny, train

SPREAD = ("algo=ippo", "checkpoint.keep=true", "checkpoint.every=40", "eval.every=1000")
TAG = ("env=particle/simple_tag", "algo=ippo", "checkpoint.keep=true", "eval.every=1000")


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of IPPO with checkpoints at 0, 40 and 80 steps."""
    return train(tmp_path_factory.mktemp("runs") / "spread", *SPREAD).run


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two teams, adversary and agent."""
    return train(tmp_path_factory.mktemp("runs") / "tag", *TAG).run


def state_at(run: Path, steps: int) -> dict[str, Any]:
    return load(run / "checkpoints" / f"{steps:012d}")[0]["algorithms"]


def started(*settings: str) -> tuple[WarmStart, dict[str, Any]]:
    """Returns the warm start of a run, and the state of its algorithms before the first step."""
    config = resolve(tiny(*settings)).config
    with closing(build(config)) as components:
        found = warm_start(config, components.algorithms)
        assert found is not None
        return found, {name: algorithm.state_dict() for name, algorithm in components.algorithms.items()}


def refused(*settings: str) -> str:
    with pytest.raises(UserError) as error:
        started(*settings)
    return str(error.value)


# ------------------------------------------------------------------------------------------------------- what is taken


def test_a_run_starts_with_the_weights_and_normalizers_of_another(spread: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "new", *SPREAD, "seed=5", f"init.run={spread}", "init.checkpoint=40").run
    new, old, fresh = state_at(out, 0)["agent"], state_at(spread, 40)["agent"], state_at(spread, 0)["agent"]
    for entry in ("policy", "critic", "value_moments"):
        assert_same(new[entry], old[entry])
    assert_same(new["optimizer"], fresh["optimizer"])
    assert not torch.equal(new["shuffle"], old["shuffle"])
    assert new["updates"] == 0


def test_the_manifest_records_run_checkpoint_and_hash(spread: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "new", *SPREAD, f"init.run={spread}", "init.checkpoint=last").run
    record = json.loads((out / "manifest.json").read_text())["init"]
    assert record["run"] == str(spread)
    assert (record["checkpoint"], record["teams"]) == (80, {"agent": "agent"})
    assert len(record["sha256"]) == 64
    assert load_resolved(out / "config.yaml").config.init is not None


def test_the_state_of_optimizers_is_taken_if_asked_for(spread: Path) -> None:
    _, state = started(*SPREAD, f"init.run={spread}", "init.checkpoint=80", "init.optimizer=true")
    assert_same(state["agent"]["optimizer"], state_at(spread, 80)["agent"]["optimizer"])


def test_running_statistics_of_observations_are_taken(tmp_path: Path) -> None:
    run = train(tmp_path / "old", *SPREAD, "algo.normalize_obs=true").run
    _, state = started(*SPREAD, "algo.normalize_obs=true", f"init.run={run}", "init.checkpoint=80")
    moments = state["agent"]["policy"]["moments"]["agent"]
    assert_same(moments, state_at(run, 80)["agent"]["policy"]["moments"]["agent"])
    assert float(moments["count"]) > 0


def test_teams_of_other_names_are_mapped_and_their_roles_with_them(tag: Path) -> None:
    teams = ("init.teams={agent: adversary, adversary: null}", "init.partial=true", "init.checkpoint=80")
    found, state = started(*TAG, f"init.run={tag}", *teams)
    there, here = state_at(tag, 80)["adversary"]["policy"]["module"], state["agent"]["policy"]["module"]
    head = "net.networks.{}.network.head.weight"
    assert torch.equal(here[head.format("agent")], there[head.format("adversary")])
    assert found.record["teams"] == {"adversary": None, "agent": "adversary"}
    assert "init: team adversary: random weights, because init.teams.adversary=null" in found.lines


def test_a_team_that_the_other_run_lacks_starts_with_random_weights(spread: Path) -> None:
    found, _ = started(*TAG, f"init.run={spread}", "init.partial=true")
    assert found.lines[1] == "init: team adversary: random weights, because that run has no team adversary"


def test_layers_that_do_not_fit_are_named(spread: Path) -> None:
    found, state = started(*SPREAD, "env.agents=4", f"init.run={spread}", "init.partial=true")
    assert found.lines[1:] == (
        "init: value_moments, policy in part, critic in part; not taken: optimizer",
        "init: not taken: policy/module/net.networks.agent.network.body.layers.0.weight: [24, 8] here, [18, 8] there",
        "init: not taken: policy/moments/agent/mean: [24] here, [18] there",
        "init: not taken: critic/network.networks.agent.network.body.layers.0.weight: [25, 8] here, [19, 8] there",
    )
    body = "net.networks.agent.network.body.layers.0."
    here, there = state["agent"]["policy"]["module"], state_at(spread, 80)["agent"]["policy"]["module"]
    assert here[body + "bias"].shape == there[body + "bias"].shape
    assert not torch.equal(here[body + "bias"], there[body + "bias"])  # a layer is taken as a whole or not at all
    assert torch.equal(here["net.networks.agent.network.head.bias"], there["net.networks.agent.network.head.bias"])


def test_another_critic_is_not_taken(spread: Path) -> None:
    found, state = started(*SPREAD[1:], "algo=mappo", f"init.run={spread}", "init.checkpoint=80")
    assert found.lines[1] == "init: policy, value_moments; not taken: critic, optimizer"
    assert_same(dict(state["agent"]["policy"]["module"]), state_at(spread, 80)["agent"]["policy"]["module"])


def test_settings_that_change_what_weights_mean_are_named(spread: Path) -> None:
    found, _ = started(*SPREAD, f"init.run={spread}", "algo.activation=silu")
    assert found.lines[-1].startswith("init: algo.activation was ")
    assert found.lines[-1].endswith(" and is silu")


@pytest.mark.slow
def test_a_network_that_two_entries_share_stays_shared(tmp_path: Path) -> None:
    """A frozen team has a policy only. A Q-learner loads its policy, then value and mixer with the same networks."""
    run = train(tmp_path / "vdn", "algo=vdn", *REPLAY).run
    frozen = ["algo=frozen", f"algo.run={run}", "algo.checkpoint=80", "steps=80", "num_envs=4", "threads=1"]
    frozen += ["eval.every=0", "progress=off", "log.tensorboard=false", f"out={tmp_path / 'frozen'}"]
    source = training.train(resolve(frozen)).run
    config = resolve(tiny("algo=qmix", *REPLAY, f"init.run={source}", "init.checkpoint=last")).config
    with closing(build(config)) as components:
        found = warm_start(config, components.algorithms)
        state = components.algorithms["agent"].state_dict()
    assert found is not None
    assert found.lines[1] == "init: policy; not taken: module, target, state, reward_moments, optimizer"
    head = "networks.agent.network.head.weight"
    learned = state_at(run, 80)["agent"]["policy"]["net"][head]
    assert torch.equal(state["policy"]["net"][head], learned)
    assert torch.equal(state["module"][f"value.net.{head}"], learned)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("algo=coma",), ("algo=poca",), ("algo=wqmix", *REPLAY), ("algo=hasac", *REPLAY)],
    ids=lambda settings: settings[0],
)
def test_every_algorithm_can_start_with_its_own_weights(settings: tuple[str, ...], tmp_path: Path) -> None:
    """One of each family with networks of its own besides those of IPPO."""
    run = train(tmp_path / "old", *settings, "eval.every=0").run
    found, state = started(*settings, f"init.run={run}", "init.optimizer=true", "seed=3")
    assert "not taken" not in " ".join(found.lines)
    own = {"hidden_state", "buffer", "shuffle", "order", "generator", "next_actions", "steps", "updates"}
    new, old = (_tensors({k: v for k, v in s["agent"].items() if k not in own}) for s in (state, state_at(run, 80)))
    assert_same(new, old)
    assert any("optimizer" in name and value for name, value in old.items())


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    nested = {k: _tensors(v) if isinstance(v, dict) else v for k, v in state.items()}
    return {k: v for k, v in nested.items() if isinstance(v, dict | torch.Tensor)}


# --------------------------------------------------------------------------------------------------------------- resume


def test_a_warm_started_run_resumes_exactly(spread: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resumes_exactly(tmp_path, monkeypatch, 40, *SPREAD, f"init.run={spread}", "init.optimizer=true")


def test_a_run_without_checkpoint_starts_again_from_the_same_weights(spread: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "new", *SPREAD, f"init.run={spread}", "init.checkpoint=50").run
    weights = state_at(out, 0)
    shutil.rmtree(out / "checkpoints")
    assert main(["resume", str(out)]) == 0
    assert_same(state_at(out, 0), weights)


def test_a_run_without_checkpoint_refuses_changed_weights(
    spread: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(spread, tmp_path / "other")
    out = train(tmp_path / "new", *SPREAD, f"init.run={other}", "init.checkpoint=40").run
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(other)
    train(other, *SPREAD, "seed=9")
    assert main(["resume", str(out)]) == 2
    assert "its checkpoint of 40 steps is not the one that this run was started with" in capsys.readouterr().err


def test_a_best_response_does_not_start_with_the_weights_of_the_runs_start(
    tag: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run", *TAG, f"init.run={tag}").run
    found = exploit(run, ["eval.episodes=4", "eval.num_envs=4"], steps=40, episodes=4)
    assert load_resolved(Path(found.run) / "config.yaml").config.init is None


# --------------------------------------------------------------------------------------------------------------- errors


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    assert refused(f"init.run={tmp_path / 'nope'}").startswith(f"init.run={tmp_path / 'nope'}: no such run.")


def test_a_run_alone_is_refused_with_the_key_to_write(spread: Path) -> None:
    assert refused("init=old") == "init=old: expected null or a section. Set init.run=old"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("init.teams={agnt: agent}",), "init.teams.agnt=agent: no team that learns is called 'agnt'. Did you mean"),
        (("init.teams={agent: adversary}",), "init.teams.agent=adversary: "),
        (("init.teams={agent: null}",), "it has the teams agent, and those that learn here are agent. Set init.teams="),
        (
            ("init.checkpoint=first",),
            "init.checkpoint=first: expected auto, best, best:TEAM, last or a number of steps",
        ),
        (("env.agents=4",), "[24, 8] here, [18, 8] there, and 1 more). Set init.partial=true to take the layers that"),
        (("algo.hidden_sizes=[16]",), "Set algo.hidden_sizes=[8] as in that run"),
        (("algo.normalize_obs=false",), "Set algo.normalize_obs=true as in that run"),
        (("env.agents=4", "init.partial=true", "init.optimizer=true"), "Set init.optimizer=false."),
    ],
)
def test_what_does_not_fit_is_refused_with_a_fix(spread: Path, settings: tuple[str, ...], message: str) -> None:
    error = refused(*SPREAD, f"init.run={spread}", *settings)
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize("partial", ["false", "true"])
def test_an_algorithm_of_another_kind_is_refused(spread: Path, partial: str) -> None:
    """Statistics of observations, which fit, are no layers."""
    config = resolve(tiny("algo=qmix", *REPLAY, f"init.run={spread}", f"init.partial={partial}")).config
    with closing(build(config)) as components, pytest.raises(UserError, match="that run's has networks of other names"):
        warm_start(config, components.algorithms)


def test_a_run_that_is_refused_leaves_nothing_behind(spread: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        train(tmp_path / "new", *SPREAD, f"init.run={spread}", "env.agents=4")
    assert not (tmp_path / "new").exists()


def test_a_corrupt_checkpoint_is_refused_if_it_was_named(spread: Path, tmp_path: Path) -> None:
    other = shutil.copytree(spread, tmp_path / "other")
    file = other / "checkpoints" / f"{80:012d}" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert refused(*SPREAD, f"init.run={other}", "init.checkpoint=80").startswith("init.checkpoint=80: ")
    assert "corrupt" in refused(*SPREAD, f"init.run={other}", "init.checkpoint=last")
    found, _ = started(*SPREAD, f"init.run={other}", "init.checkpoint=79")
    assert found.record["checkpoint"] == 40


def test_code_of_an_untrusted_run_is_not_imported(
    spread: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of a run of someone else name code; its weights are read without it."""
    other = shutil.copytree(spread, tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("name: particle/simple_spread", "name: ownbomb:make"))
    (tmp_path / "ownbomb.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("COTERIE_TRUST", raising=False)
    with pytest.raises(UserError, match="ownbomb"):
        load_resolved(other / "config.yaml")
    found, _ = started(*SPREAD, f"init.run={other}")
    assert found.record["run"] == str(other)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_commands_take_the_nearest_checkpoint_at_or_below(spread: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(spread), "--checkpoint", "79", "--episodes", "4", "--json"]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    note = "there is no checkpoint of 79 steps. Using the nearest before it, of 40 steps."
    assert (report["steps"], report["warnings"]) == (40, [note])
    assert f"coterie: {note}" in output.err
    assert main(["evaluate", str(spread), "--checkpoint", "40", "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_a_checkpoint_that_names_no_number_is_refused(spread: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(spread), "--checkpoint", "frist"]) == 2
    assert "has no checkpoint 'frist'. Use best, last or one of 0, 40, 80." in capsys.readouterr().err


def test_the_folder_of_a_checkpoint_selects_it(spread: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = spread / "checkpoints" / f"{40:012d}"
    assert main(["evaluate", str(folder), "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 40
    assert len(Checkpoints(spread / "checkpoints").all()) == 3
