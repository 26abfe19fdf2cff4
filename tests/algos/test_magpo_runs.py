"""Runs of MAGPO: the guider collects, and everything else takes the learner."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.algos.magpo import MAGPO
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.assembly.warm_start import warm_start
from coterie.export.export import export
from coterie.export.portable.player import Player
from coterie.training.selfplay_callback import SelfPlayCallback
from tinyruns import tiny, train

MAGPO_SPREAD = ("algo=magpo", "algo.embedding_size=8", "env=particle/simple_spread")
GRU = ("algo.rnn=gru", "algo.rnn_size=4")
LESSONS = (
    "curriculum.lessons=[{name: slow, parameters: {prey_speed: 0.25}, advance: {metric: progress, above: 0.25}}, "
    "{name: full, parameters: {prey_speed: 1}}]"
)


def learner_in(components, team: str) -> MAGPO:
    learner = components.algorithms[team]
    assert isinstance(learner, MAGPO)
    return learner


def test_the_guider_collects_and_the_learner_is_evaluated() -> None:
    with closing(build(resolve(tiny(*MAGPO_SPREAD)).config)) as components:
        learner = learner_in(components, "agent")
        assert components.collector.policies["agent"] is learner.behavior_policy
        assert components.evaluator.policies["agent"] is learner.policy
        assert "collected by a guider" in learner.notes[0]


def test_opponents_in_self_play_are_snapshots_of_the_learner() -> None:
    settings = ("algo=magpo", "algo.embedding_size=8", "env=matrix/rock_paper_scissors", "selfplay.opponents=uniform")
    with closing(build(resolve(tiny(*settings, "selfplay.snapshot_interval=40")).config)) as components:
        (callback,) = (found for found in components.callbacks if isinstance(found, SelfPlayCallback))
        callback.on_training_start()
        learner = learner_in(components, "row")
        assert components.collector.policies["row"] is learner.behavior_policy
        assert components.collector.policies["column"] is callback.opponents["column"]
        assert components.evaluator.policies["row"] is learner.policy
        held = sum(x[0].numel() for x in callback._pools["row"].stacked.values())
        acting = [x for module in learner.policy.networks for x in (*module.parameters(), *module.buffers())]
        assert held == sum(x.numel() for x in acting)


@pytest.mark.slow
def test_a_curriculum_trains_the_learner(tmp_path: Path) -> None:
    settings = ("env=particle/simple_tag", *GRU, LESSONS)
    run = train(tmp_path / "run", "algo=magpo", "algo.embedding_size=8", "checkpoint.keep=true", *settings)
    first, last = (coterie.load(run, checkpoint=which).policies for which in ("0", "last"))
    team = next(iter(first))
    before, after = (found[team].state_dict()["module"] for found in (first, last))
    assert any(not torch.equal(x, after[name]) for name, x in before.items())


@pytest.mark.slow
def test_players_and_exports_are_those_of_decentralized_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", *MAGPO_SPREAD, *GRU)
    assert "centralized execution" not in run.summary.text()
    obs = {f"agent_{i}": np.full(18, 0.1 * i, np.float32) for i in range(3)}
    actions = coterie.load(run).player(mode="greedy").act(obs)
    alone = coterie.load(run).player(mode="greedy")
    assert alone.act({"agent_1": obs["agent_1"]}) == {"agent_1": actions["agent_1"]}
    export(run.run, tmp_path / "out", "numpy")
    assert "centralized" not in capsys.readouterr().err
    exported = Player(tmp_path / "out", mode="greedy")
    assert exported.policies[0].info["centralized"] is False
    assert exported.act(obs) == actions


@pytest.mark.slow
def test_a_warm_start_takes_the_guider_of_a_run_of_magpo_and_from_mappo_the_learner_only(tmp_path: Path) -> None:
    mine = train(tmp_path / "magpo", *MAGPO_SPREAD, "seed=5").run
    other = train(tmp_path / "mappo", "algo=mappo", "algo.obs_agent_id=true", MAGPO_SPREAD[2], "seed=5").run
    for run, guided in ((mine, True), (other, False)):
        config = resolve(tiny(*MAGPO_SPREAD, f"init.run={run}")).config
        with closing(build(config)) as components:
            learner = learner_in(components, "agent")
            before = [x.clone() for x in learner.actor.parameters()]
            found = warm_start(config, components.algorithms)
            assert found is not None
            taken = "policy" if not guided else "policy, critic"
            assert any(taken in line for line in found.lines)
            kept = all(torch.equal(x, y) for x, y in zip(before, learner.actor.parameters(), strict=True))
            assert kept != guided
            assert ("guider" in "".join(found.lines).partition("not taken")[2]) != guided
