"""Search spaces: words, YAML files, and the ranges that settings have themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from coterie.core.errors import UserError
from coterie.sweeps.tuning.space import Distribution, contains, range_text, read_space, split_words
from coterie.sweeps.tuning.study import make_plan


def _space(*words: str, space: Path | None = None) -> dict[str, Distribution]:
    return dict(make_plan(words, space=space).space)


def test_words_become_distributions():
    space = _space(
        *("algo=mappo", "algo.lr=log(1e-5,1e-2)", "algo.clip_eps=choice(0.1,0.2)", "algo.epochs=log(1,16)"),
        *("algo.gamma=uniform(0.9,1)", "algo.hidden_sizes=choice([64,64],[128])", "num_envs=int(8,64)"),
    )
    assert space["algo.lr"] == FloatDistribution(1e-5, 1e-2, log=True)
    assert space["algo.clip_eps"] == CategoricalDistribution(("0.1", "0.2"))
    assert space["algo.epochs"] == IntDistribution(1, 16, log=True)
    assert range_text(space["algo.gamma"]) == "uniform(0.9,1.0)"
    assert space["algo.hidden_sizes"].choices == ("[64,64]", "[128]")
    assert range_text(space["num_envs"]) == "int(8,64)"


def test_a_setting_has_a_range_of_its_own():
    space = _space(
        *("algo=mappo", "algo.lr=range()", "algo.normalize_obs=range()", "algo.activation=range()"),
        *("algo.epochs=range()", "algo.lr_schedule=range()"),
    )
    assert space["algo.lr"] == FloatDistribution(1e-5, 1e-2, log=True)
    assert space["algo.normalize_obs"].choices == ("false", "true")
    assert {"relu", "tanh"} <= set(space["algo.activation"].choices)
    assert space["algo.epochs"] == IntDistribution(1, 20)
    assert _space("algo=iql", "algo.priority_alpha=range()")["algo.priority_alpha"] == FloatDistribution(0.0, 1.0)


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("mappo", {"lr", "gamma", "gae_lambda", "entropy_coef", "clip_eps", "epochs"}),
        ("qmix", {"lr", "gamma", "tau", "batch_size", "n_step"}),
        ("masac", {"lr", "gamma", "tau", "batch_size", "n_step", "temperature"}),
    ],
)
def test_without_ranges_the_usual_settings_are_searched(algo: str, expected: set[str]):
    found = {key.removeprefix("algo.") for key in _space(f"algo={algo}")}
    assert found <= expected
    assert {"lr", "gamma"} <= found
    assert "algo.lr" not in _space(f"algo={algo}", "algo.lr=1e-3")  # it has one value


def test_a_file_has_ranges_which_words_override(tmp_path: Path):
    file = tmp_path / "space.yaml"
    file.write_text(
        "algo:\n  lr: {log_uniform: [1e-5, 1e-2]}\n  epochs: {integers: [1, 8]}\n  clip_eps: {choices: [0.1, 0.2]}\n"
        "  gamma: range\n  gae_lambda: uniform(0.8,1)\n"
    )
    assert read_space(file) == {
        "algo.lr": "log(1e-05,0.01)",
        "algo.epochs": "int(1,8)",
        "algo.clip_eps": "choice(0.1,0.2)",
        "algo.gamma": "range()",
        "algo.gae_lambda": "uniform(0.8,1)",
    }
    space = _space("algo.epochs=choice(1,2)", space=file)
    assert len(space) == 5
    assert space["algo.epochs"] == CategoricalDistribution(("1", "2"))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algo.lrr=log(1e-5,1e-2)", r"algo\.lrr: no such setting\. Did you mean 'algo\.lr'"),
        ("algo.lrr=range()", r"algo\.lrr: no such setting"),
        ("algo.lr=log(1e-2,1e-5)", r"algo\.lr=log\(1e-2,1e-5\): the lower bound 0\.01 is greater"),
        ("algo.lr=log(1e-3,1e-3)", r"algo\.lr=log\(1e-3,1e-3\): only one value"),
        ("algo.lr=log()", r"algo\.lr=log\(\): the range is empty"),
        ("algo.lr=choice(1e-3)", r"only one value"),
        ("algo.entropy_coef=log(0,1)", r"a logarithmic range begins above 0"),
        ("algo.lr=log(1e-3,5)", r"algo\.lr=5\.0: expected a number greater than 0 and less than 1"),
        ("algo.lr=log(1,2,3)", r"expected two finite numbers"),
        ("algo.lr=lgo(1,2)", r"'lgo' is no range\. Did you mean 'log'"),
        ("algo.epochs=uniform(1.5,2)", r"takes integers"),
        ("algo.value_norm_decay=range()", r"algo\.value_norm_decay: has no range of its own"),
        ("env.n=int(2,3)", r"env\.n: cannot be searched, because it changes the task"),
        ("steps=int(10,20)", r"steps: cannot be searched"),
        ("seed=3", r"seed=3: each trial has several runs\. Write --seeds 3"),
        ("out=there", r"Write --out there"),
        ("eval.every=0", r"eval\.every=0: trials are compared by evaluations"),
        ("algo=random", r"algo=random: does not learn"),
    ],
)
def test_a_mistake_is_one_line(word: str, message: str):
    with pytest.raises(UserError, match=message) as error:
        make_plan([word])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo:\n  lr: 3\n", r"space\.yaml:2: algo\.lr: no range"),
        ("# nothing\n", r"contains no settings"),
        ("algo.lr: lgo(1,2)\n", r"'lgo' is no range"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, text: str, message: str):
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_space(file)
    with pytest.raises(UserError, match="no such file"):
        read_space(tmp_path / "missing.yaml")


def test_seeds_are_a_number_or_a_list():
    assert make_plan([]).seeds == (1000, 1001, 1002)
    assert make_plan([], seeds="1").seeds == (1000,)
    assert make_plan([], seeds="7,9-11").seeds == (7, 9, 10, 11)
    for wrong in ("", "x", "0", "5-3", "1000000"):
        with pytest.raises(UserError, match="--seeds"):
            make_plan([], seeds=wrong)


def test_other_words_are_settings():
    assert split_words(["algo=ippo", "algo.hidden_sizes=[8,8]", "algo.lr = log(1, 2)"]) == (
        ["algo=ippo", "algo.hidden_sizes=[8,8]"],
        {"algo.lr": "log(1, 2)"},
    )


def test_ranges_contain_what_may_be_suggested():
    numbers = FloatDistribution(1e-5, 1e-2, log=True)
    values = (1e-5, 0.01, 0.02, float("nan"), "0.01", True)
    assert [contains(numbers, value) for value in values] == [True, True, *[False] * 4]
    assert [contains(IntDistribution(2, 8), value) for value in (2, 8, 9)] == [True, True, False]
    rnn = CategoricalDistribution(("gru", "none"))
    assert [contains(rnn, text) for text in ("gru", "lstm")] == [True, False]
