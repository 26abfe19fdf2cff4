"""Configuration of lessons and randomized parameters, and its error messages."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from coterie.assembly.resolve import load_resolved, resolve, resolve_kwargs
from coterie.config.provenance import to_yaml
from coterie.core.errors import UserError
from coterie.training.curriculum import Lessons, check_metric

NEAR: dict[str, Any] = {
    "name": "near",
    "parameters": {"spread": 0.3, "speed": {"uniform": [0.5, 1]}},
    "advance": {"metric": "rollout/return_mean", "above": -20, "patience": 3},
}
FAR: dict[str, Any] = {"name": "far", "parameters": {"spread": {"choices": [0.5, 1]}}}


def test_lessons_in_a_file_are_equal_after_saving_and_loading(tmp_path: Path):
    written = tmp_path / "lessons.yaml"
    written.write_text(
        "curriculum:\n"
        "  evaluate: last\n"
        "  lessons:\n"
        "    - name: near\n"
        "      parameters: {spread: 0.3, speed: {uniform: [0.5, 1]}}\n"
        "      advance: {metric: rollout/return_mean, above: -20, patience: 3}\n"
        "    - name: far\n"
        "      parameters:\n"
        "        spread: {choices: [0.5, 1]}\n"
        "randomize:\n"
        "  damping: {normal: [0.25, 0.1]}\n"
    )
    resolved = resolve(["randomize.speed=2"], written)
    assert (
        resolved.config.curriculum
        == resolve_kwargs(curriculum={"lessons": [NEAR, FAR], "evaluate": "last"}).config.curriculum
    )
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(resolved))
    assert load_resolved(saved).config == resolved.config
    course = Lessons(resolved.config.curriculum, resolved.config.randomize)
    plain = [{name: one.model_dump() for name, one in course.samplers(k).items()} for k in range(2)]
    damping = {"normal": [0.25, 0.1]}
    assert plain[0] == {"spread": 0.3, "speed": {"uniform": (0.5, 1)}, "damping": damping}
    assert plain[1] == plain[0] | {"spread": {"choices": [0.5, 1]}}  # Other parameters keep their values.
    assert [course.eval_lesson(k) for k in range(2)] == [1, 1]
    assert course.title(1) == "lesson 2 of 2: far"


@pytest.mark.parametrize(
    "overrides", [["randomize.speed=2"], ["randomize.speed={uniform: [0.5, 2]}"], ["randomize.speed.normal=[1,0.1]"]]
)
def test_a_parameter_on_the_command_line_replaces_that_of_a_file(tmp_path: Path, overrides: list[str]):
    alone = resolve(overrides).config.randomize
    for given in ("3", "{uniform: [0.1, 0.2]}", "{normal: [1, 2], low: 0.5}"):
        file = tmp_path / "some.yaml"
        file.write_text(f"randomize: {{speed: {given}, spread: 0.5}}\n")
        both = resolve(overrides, file).config.randomize
        assert both["speed"] == alone["speed"]
        assert both["spread"].mean() == 0.5


def changed_lessons(change: Any) -> list[Any]:
    """Returns two valid lessons after a change."""
    given = copy.deepcopy([NEAR, FAR])
    change(given)
    return given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0].pop("advance"), r"lessons: lesson 1 \('near'\) is not the last\. Give it an advance"),
        (lambda x: x[1].update(advance=x[0]["advance"]), r"lesson 2 \('far'\) is the last and cannot advance"),
        (lambda x: x[0]["advance"].update(below=1), r"lesson 1 \('near'\): .*give either above or below"),
        (lambda x: x[0]["advance"].pop("above"), r"give either above or below"),
        (lambda x: x[0]["advance"].update(window=3, smoothing=0.5), r"smoothing=0.5 and window=3 exclude each other"),
        (lambda x: x[0]["advance"].update(patience=0), r"'near'\): advance.patience=0: expected an integer"),
        (lambda x: x[0]["advance"].update(above="abc"), r"advance.above=abc: expected a number"),
        (lambda x: x[0]["advance"].update(paitence=2), r"no 'advance.paitence'. Did you mean 'advance.patience'"),
        (lambda x: x[0]["advance"].pop("metric"), r"advance.metric: a value is required"),
        (lambda x: x[1]["parameters"].update(spread={"uniform": [1, 0]}), r"'spread': the lower bound 1 is greater"),
        (lambda x: x[0].update(parameters=3), r"parameters=3: expected parameters by name in braces"),
        (lambda x: x[0].pop("name"), r"lesson 1: name: a value is required"),
        (lambda x: x[1].update(name="near"), r"two lessons have the name 'near'\. Rename one"),
        (lambda x: x.append(3), r"lesson 3 is 3: expected \{name"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_lesson_raises_an_error_of_one_line(change: Any, message: str):
    with pytest.raises(UserError, match=message) as error:
        resolve_kwargs(curriculum={"lessons": changed_lessons(change)})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("randomize.speed={uniform: [2, 1]}", r"'speed': the lower bound 2 is greater than the upper bound 1; swap"),
        ("randomize.speed={unform: [1, 2]}", r"there is no distribution 'unform'. Did you mean 'uniform'"),
        ("randomize=3", r"randomize=3: expected parameters by name in braces"),
        ("curriculum.lessons=3", r"curriculum.lessons=3: expected a list of lessons"),
        ("curriculum.evaluate=first", r"curriculum.evaluate=first: expected current or last"),
        ("curriculum.lesons=[]", r"curriculum.lesons: no such setting. Did you mean 'curriculum.lessons'"),
    ],
)
def test_a_mistake_in_an_override_names_the_key_and_the_fix(override: str, message: str):
    with pytest.raises(UserError, match=message):
        resolve([override])


@pytest.mark.parametrize(
    ("metric", "teams", "message"),
    [
        ("rollout/retrun_mean", ["a"], r"'rollout/retrun_mean', which is never logged. Did you mean 'rollout/ret"),
        ("rollout/a/return_mean", ["a"], r"the run has one team\. Use 'rollout/return_mean'"),
        ("rollout/return_mean", ["a", "b"], r"is logged per team\. Use 'rollout/a/return_mean' or 'rollout/b"),
        ("rollout/c/return_mean", ["a", "b"], r"does not belong to a team of the run\. "),
        ("eval/metric/won", ["a"], r"the environment does not report. Did you mean 'win'|choose from win"),
        ("rollout", ["a"], r"is never logged"),
        ("rollout/group_return_mean", ["a"], r"gives no group rewards\. Use return_mean\."),
        ("eval/b/group_return_mean/g", ["a", "b"], r"gives no group rewards\. Use return_mean\."),
    ],
)  # fmt: skip
def test_a_metric_that_is_never_logged_is_refused(metric: str, teams: list[str], message: str):
    with pytest.raises(UserError, match=message):
        check_metric("one", metric, teams=teams, env_metrics=("win",), has_group_reward=False, evaluates=True)


def test_logged_metrics_are_accepted():
    for metric in ("progress", "steps", "rollout/return_mean", "rollout/return_mean/agent_0", "eval/metric/win"):
        check_metric("one", metric, teams=["a"], env_metrics=("win",), has_group_reward=False, evaluates=True)
    for metric in (
        "rollout/a/return_mean",
        "eval/b/return_std",
        "rollout/length_mean",
        "rollout/b/return_mean/agent_0",
    ):
        check_metric("one", metric, teams=["a", "b"], env_metrics=("win",), has_group_reward=False, evaluates=True)
    with pytest.raises(UserError, match=r"without evaluations \(eval.every=0\)"):
        check_metric("one", "eval/return_mean", teams=["a"], env_metrics=(), has_group_reward=False, evaluates=False)
