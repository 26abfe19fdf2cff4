"""Lessons and randomised parameters as they are written, and what is said about those that are wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from coterie.config import load_resolved, resolve, resolve_kwargs
from coterie.curriculum.course import Course
from coterie.curriculum.metric import check
from coterie.errors import UserError
from coterie.origins import to_yaml

NEAR: dict[str, Any] = {
    "name": "near",
    "parameters": {"spread": 0.3, "speed": {"uniform": [0.5, 1]}},
    "advance": {"metric": "rollout/return_mean", "above": -20, "patience": 3},
}
FAR: dict[str, Any] = {"name": "far", "parameters": {"spread": {"choices": [0.5, 1]}}}


def test_a_file_of_lessons_is_read_and_saved_as_it_was(tmp_path: Path):
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
        "randomise:\n"
        "  damping: {normal: [0.25, 0.1]}\n"
    )
    resolved = resolve(["randomise.speed=2"], written)
    assert (
        resolved.config.curriculum
        == resolve_kwargs(curriculum={"lessons": [NEAR, FAR], "evaluate": "last"}).config.curriculum
    )
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(resolved))
    assert load_resolved(saved).config == resolved.config
    course = Course(resolved.config.curriculum, resolved.config.randomise)
    plain = [{name: one.model_dump() for name, one in course.samplers(k).items()} for k in range(2)]
    damping = {"normal": [0.25, 0.1]}
    assert plain[0] == {"spread": 0.3, "speed": {"uniform": (0.5, 1)}, "damping": damping}
    assert plain[1] == plain[0] | {"spread": {"choices": [0.5, 1]}}  # what it does not name stays
    assert [course.evaluated(k) for k in range(2)] == [1, 1]
    assert course.title(1) == "lesson 2 of 2: far"


@pytest.mark.parametrize(
    "words", [["randomise.speed=2"], ["randomise.speed={uniform: [0.5, 2]}"], ["randomise.speed.normal=[1,0.1]"]]
)
def test_the_command_line_replaces_what_a_file_says_of_a_parameter(tmp_path: Path, words: list[str]):
    alone = resolve(words).config.randomise
    for given in ("3", "{uniform: [0.1, 0.2]}", "{normal: [1, 2], low: 0.5}"):
        file = tmp_path / "some.yaml"
        file.write_text(f"randomise: {{speed: {given}, spread: 0.5}}\n")
        both = resolve(words, file).config.randomise
        assert both["speed"] == alone["speed"]
        assert both["spread"].mean() == 0.5


def lessons(change: Any) -> list[Any]:
    given = copy.deepcopy([NEAR, FAR])
    change(given)
    return given


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[0].pop("advance"), r"curriculum.lessons: lesson 1 \('near'\) is not the last: give it an advance"),
        (lambda x: x[1].update(advance=x[0]["advance"]), r"lesson 2 \('far'\) is the last, nothing comes after it"),
        (lambda x: x[0]["advance"].update(below=1), r"lesson 1 \('near'\): .*give either above or below"),
        (lambda x: x[0]["advance"].pop("above"), r"give either above or below"),
        (lambda x: x[0]["advance"].update(window=3, smoothing=0.5), r"smoothing=0.5 and window=3 at once: keep one"),
        (lambda x: x[0]["advance"].update(patience=0), r"'near'\): advance.patience=0: expected a whole number"),
        (lambda x: x[0]["advance"].update(above="abc"), r"advance.above=abc: expected a number"),
        (lambda x: x[0]["advance"].update(paitence=2), r"no 'advance.paitence': did you mean 'advance.patience'"),
        (lambda x: x[0]["advance"].pop("metric"), r"advance.metric is needed"),
        (lambda x: x[1]["parameters"].update(spread={"uniform": [1, 0]}), r"'spread': the low end 1 is above"),
        (lambda x: x[0].update(parameters=3), r"parameters=3: expected parameters by name in braces"),
        (lambda x: x[0].pop("name"), r"lesson 1: name is needed"),
        (lambda x: x[1].update(name="near"), r"two lessons are called 'near': give each a name of its own"),
        (lambda x: x.append(3), r"lesson 3 is 3: expected \{name"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_lesson_is_one_line(change: Any, said: str):
    with pytest.raises(UserError, match=said) as told:
        resolve_kwargs(curriculum={"lessons": lessons(change)})
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("randomise.speed={uniform: [2, 1]}", r"the parameter 'speed': the low end 2 is above the high end 1"),
        ("randomise.speed={unform: [1, 2]}", r"there is no distribution 'unform': did you mean 'uniform'"),
        ("randomise=3", r"randomise=3: expected parameters by name in braces"),
        ("curriculum.lessons=3", r"curriculum.lessons=3: expected a list of lessons"),
        ("curriculum.evaluate=first", r"curriculum.evaluate=first: expected present or last"),
        ("curriculum.lesons=[]", r"there is no key 'curriculum.lesons': did you mean 'curriculum.lessons'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(word: str, said: str):
    with pytest.raises(UserError, match=said):
        resolve([word])


@pytest.mark.parametrize(
    ("metric", "teams", "said"),
    [
        ("rollout/retrun_mean", ["a"], r"'rollout/retrun_mean', which is never logged: did you mean 'rollout/ret"),
        ("rollout/a/return_mean", ["a"], r"the run has one team: write 'rollout/return_mean'"),
        ("rollout/return_mean", ["a", "b"], r"several teams have: write 'rollout/a/return_mean' or 'rollout/b"),
        ("rollout/c/return_mean", ["a", "b"], r"is of no team here: choose from a, b"),
        ("eval/metric/won", ["a"], r"the environment does not report: did you mean 'win'|choose from win"),
        ("rollout", ["a"], r"is never logged"),
    ],
)  # fmt: skip
def test_a_metric_that_is_never_logged_is_told_before_the_run(metric: str, teams: list[str], said: str):
    with pytest.raises(UserError, match=said):
        check("one", metric, teams, ("win",), True)


def test_metrics_that_are_logged_can_be_waited_for():
    for metric in ("progress", "steps", "rollout/return_mean", "rollout/return_mean/agent_0", "eval/metric/win"):
        check("one", metric, ["a"], ("win",), True)
    for metric in (
        "rollout/a/return_mean",
        "eval/b/return_std",
        "rollout/length_mean",
        "rollout/b/return_mean/agent_0",
    ):
        check("one", metric, ["a", "b"], ("win",), True)
    with pytest.raises(UserError, match=r"there are no evaluations \(eval.every=0\)"):
        check("one", "eval/return_mean", ["a"], (), False)
