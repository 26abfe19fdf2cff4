"""Command lines and files of other programs are answered with Coterie's command, which is accepted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from coterie.assembly.other_programs import mlagents_answer, pymarl_answer
from coterie.assembly.resolve import resolve
from coterie.config import sources
from coterie.core.errors import UserError

POCA = """
behaviors:
  SoccerTwos:
    trainer_type: poca
    hyperparameters: {batch_size: 2048, learning_rate: 0.0003, beta: 0.005, lambd: 0.9, num_epoch: 3}
    network_settings: {normalize: false, hidden_units: 512, num_layers: 2}
    reward_signals:
      extrinsic: {gamma: 0.98, strength: 1.0}
    max_steps: 50000000
    time_horizon: 1000
    self_play: {save_steps: 50000, window: 8, play_against_latest_model_ratio: 0.4}
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--config=qmix --env-config=sc2 with env_args.map_name=3m", ["algo=qmix", "env=smac/3m"]),
        ("--config=coma with env_args.map_name=8m t_max=1000", ["algo=coma", "env=smac/8m", "steps=1000"]),
        (
            "--config=qmix --env-config=sc2 with env_args.map_name=3m buffer_size=5000 lr=0.001 use_cuda=False",
            ["algo=qmix", "env=smac/3m", "lr=0.001"],
        ),
        (
            "algo=vdn env_args.key=lbforaging:Foraging-8x8-2p-3f-v3",
            ["algo=vdn", "env=lbforaging/Foraging-8x8-2p-3f-v3"],
        ),
        (
            "--config=vdn --env-config=gymma with env_args.time_limit=50 env_args.key=lbforaging:Foraging-8x8-2p-3f-v3",
            ["algo=vdn", "env=lbforaging/Foraging-8x8-2p-3f-v3", "env.episode_limit=50"],
        ),
    ],
)
def test_a_command_line_of_pymarl_is_translated(words: str, expected: list[str]):
    answer = pymarl_answer(words.split())
    assert answer is not None
    command, _, by_hand = answer.partition("Write: ")[2].partition(". Set by hand")
    assert shlex.split(command)[2:] == expected
    assert by_hand.endswith(": buffer_size, use_cuda.") == ("buffer_size" in words)


@pytest.mark.parametrize("words", ["algo=qmix steps=10", "--config own.yaml seed=3", "--config=own.yaml"])
def test_other_command_lines_are_not(words: str):
    assert pymarl_answer(words.split()) is None


def test_a_configuration_of_mlagents_is_translated_into_settings_that_are_accepted(tmp_path: Path):
    file = tmp_path / "poca.yaml"
    file.write_text(POCA)
    with pytest.raises(UserError, match=r"poca\.yaml: a configuration of ML-Agents\. Write: coterie train algo=poca"):
        resolve(["steps=10"], file)
    answer = mlagents_answer(file, sources.from_file(file))
    assert answer is not None
    command, _, by_hand = answer.partition("Write: ")[2].partition(". Set by hand")
    *words, env = shlex.split(command)[2:]
    assert env == "env=unity/BUILD"
    config = resolve([*words, "env=particle/simple_tag"]).config
    params = config.algo.params.model_dump()
    assert (params["lr"], params["entropy_coef"], params["td_lambda"], params["epochs"]) == (3e-4, 5e-3, 0.9, 3)
    assert (params["gamma"], params["hidden_sizes"], params["normalize_obs"]) == (0.98, (512, 512), False)
    assert (config.selfplay.opponents, config.selfplay.window, config.selfplay.latest_ratio) == ("uniform", 8, 0.4)
    assert by_hand.endswith(": batch_size, strength, max_steps, time_horizon, save_steps.")
