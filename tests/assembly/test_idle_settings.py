"""Values of the user without effect are named at the start of a run, and only these."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from pydantic import BaseModel

import coterie
from coterie.algos import registry
from coterie.assembly.environment import assign_teams
from coterie.assembly.idle_settings import idle_lines
from coterie.assembly.learners import make_algorithms
from coterie.assembly.resolve import resolve
from coterie.config import messages
from coterie.config.needs import FACTS, needs_of
from coterie.config.provenance import to_yaml
from coterie.config.schema import RunConfig
from coterie.envs.make import spec_of

TAG = "env=particle/simple_tag"
DEMOS = ("imitation.demos=some.safetensors",)
CONTINUOUS = ("env.actions=continuous",)


def lines_of(words: list[str], file: Path | None = None) -> list[str]:
    resolved = resolve(words, file)
    env = resolved.config.env
    teams = assign_teams(resolved.config.teams, spec_of(env.name, env.params))
    learners = make_algorithms(resolved.config, teams, torch.device("cpu"))
    return idle_lines(resolved, teams, {name: learner.policy for name, learner in learners.items()})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["selfplay.window=10", "selfplay.latest_ratio=0.5"],
            "selfplay.window, selfplay.latest_ratio: no effect with selfplay.opponents=off. Set "
            "selfplay.opponents=latest, uniform, recency or pfsp, or remove them.",
        ),
        (
            ["imitation.weight=1"],
            "imitation.weight: no effect with imitation.demos=null. Set imitation.demos, or remove it.",
        ),
        (["workers.restarts=3"], "workers.restarts: no effect with workers.count=0. Set workers.count, or remove it."),
        (
            ["workers.timeout=3"],
            "workers.timeout: no effect with workers.count=0 in an environment of Coterie. Set workers.count, or "
            "remove it.",
        ),
        (
            ["algo=qmix", "algo.target_update_interval=200", "algo.tau=0.1"],
            "algo.tau: no effect with algo.target_update_interval=200. Remove one of the two.",
        ),
        (
            ["algo.entropy_schedule=linear", "algo.entropy_decay=0.9"],
            "algo.entropy_schedule: no effect with algo.entropy_decay=0.9. Remove one of the two.",
        ),
        (
            ["algo.rnn_size=32", "algo.sequence_length=10"],
            "algo.rnn_size, algo.sequence_length: no effect with algo.rnn=none. Set algo.rnn=gru or lstm, or remove "
            "them.",
        ),
        (["algo=maddpg", "algo.noise_std=0.3"], "algo.noise_std: no effect without continuous actions. Remove it."),
        (
            ["algo=ia2c", "algo.clip_eps=0.1"],
            "algo.clip_eps: no effect with algo.epochs=1 and algo.num_minibatches=1. Set algo.epochs or "
            "algo.num_minibatches, or remove it.",
        ),
        ([*DEMOS, "imitation.margin=1"], "imitation.margin: no effect without Q-learning. Remove it."),
        (
            [*DEMOS, *CONTINUOUS, "algo=maddpg", "imitation.fit_std=true"],
            "imitation.fit_std: no effect without Gaussian actions. Remove it.",
        ),
        (
            [TAG, "teams.agent.algo=poca", "teams.agent.algo.signal_returns=group"],
            "teams.agent.algo.signal_returns: no effect with teams.agent.rewards.icm=null and "
            "teams.agent.rewards.rnd=null and teams.agent.rewards.gail=null. Set teams.agent.rewards.icm or "
            "teams.agent.rewards.rnd or teams.agent.rewards.gail, or remove it.",
        ),
        (
            [TAG, "teams.agent.algo=qmix", "teams.agent.algo.burn_in=2"],
            "teams.agent.algo.burn_in: no effect with teams.agent.algo.rnn=none. Set teams.agent.algo.rnn=gru or "
            "lstm, or remove it.",
        ),
        (
            [TAG, "teams.agent.algo=iql", "teams.adversary.algo=qmix", "algo.lr=1e-3"],
            "algo.lr: no effect as all teams have values of their own. Set teams.adversary.algo.lr and "
            "teams.agent.algo.lr, or remove it.",
        ),
    ],
)
def test_a_value_without_effect_is_named_with_what_it_needs(words: list[str], line: str):
    assert lines_of(words) == [line]


@pytest.mark.parametrize(
    "words",
    [
        ["selfplay.opponents=uniform", "selfplay.window=10", TAG],
        ["algo.rnn=gru", "algo.rnn_size=32"],
        ["workers.timeout=3", "env=gym/CartPole-v1", "algo=ppo"],
        ["algo=coma", "algo.sequence_length=16"],  # also of feed-forward networks
        ["algo.entropy_end=0.2", "algo.entropy_decay=0.9"],
        ["log.mlflow=true", "log.project=x"],
        ["algo=qmix", "algo.mixing_embed_dim=8"],  # its preset has a mixer
        [TAG, "teams.agent.algo=mappo", "teams.adversary.algo=mappo", "algo.lr=1e-3"],  # inherited
        [*DEMOS, "algo=qmix", "imitation.margin=1"],
        [*DEMOS, *CONTINUOUS, "algo=masac", "imitation.fit_std=true"],
        [
            TAG,
            "algo=poca",
            "teams.agent.algo=poca",
            "teams.agent.algo.signal_returns=group",
            "teams.agent.rewards.rnd={}",
        ],
        ["workers.overlap=false", "algo.burn_in=0", "algo=qmix"],  # ask for nothing
        [],
    ],
)
def test_values_with_effect_and_presets_are_not_named(words: list[str]):
    assert lines_of(words) == []


def test_a_file_of_all_settings_names_only_values_that_somebody_chose(tmp_path: Path):
    file = tmp_path / "all.yaml"
    file.write_text(to_yaml(resolve(["algo=qmix", "workers.restarts=3"])))
    assert [line.partition(":")[0] for line in lines_of([], file)] == ["workers.restarts"]


def models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {"": RunConfig}
    found |= {f"algo={name}": registry.algorithm(name).Config for name in registry.ALGOS}
    todo = list(found.items())
    while todo:
        name, model = todo.pop()
        for key, field in model.model_fields.items():
            for kind in messages.alternatives(field.annotation):
                if isinstance(kind, type) and issubclass(kind, BaseModel) and f"{name}.{key}" not in found:
                    found[f"{name}.{key}"] = kind
                    todo.append((f"{name}.{key}", kind))
    return found


def test_conditions_name_settings_and_values_that_exist():
    checked = 0
    known = messages.leaf_fields(RunConfig)
    for model in models().values():
        own = model.model_fields | messages.leaf_fields(model)
        for field in model.model_fields.values():
            for condition in (condition for need in needs_of(field) for condition in need.conditions):
                if condition.key in FACTS:
                    continue
                target: Any = own.get(condition.key) or known[condition.key]
                kinds = [kind for kind in messages.alternatives(target.annotation) if get_origin(kind) is Literal]
                allowed = {value for kind in kinds for value in get_args(kind)} or set(condition.values)
                assert set(condition.values) <= allowed | {None}, condition
                checked += 1
    assert checked > 50


def test_a_subclass_that_changes_only_a_default_keeps_what_a_setting_needs():
    config = registry.algorithm("ippo").Config
    assert [condition.key for need in needs_of(config.model_fields["rnn_size"]) for condition in need.conditions] == [
        "rnn"
    ]


def test_the_start_of_a_run_names_them_even_without_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings: dict[str, Any] = {"selfplay.window": 5, "algo.hidden_sizes": [4], "log.tensorboard": False}
    run = coterie.train(
        env="matrix/climbing", num_envs=2, steps=40, progress="off", eval={"every": 0}, out=tmp_path / "run", **settings
    ).run
    line = "selfplay.window: no effect with selfplay.opponents=off."
    assert capfd.readouterr().err.count(line) == 1
    coterie.resume(run, steps=80)
    assert capfd.readouterr().err.count(line) == 1
