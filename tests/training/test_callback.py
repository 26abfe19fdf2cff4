"""Functions that a run calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.core.errors import UserError
from coterie.training.callback import Callback, Event
from tinyruns import assert_same, checkpoint_state, tiny

POINTS = ("on_rollout", "on_update", "on_evaluation", "on_checkpoint", "on_end")


def small(out: Path, **more: Any) -> dict[str, Any]:
    """Settings of a run of 80 steps: two rollouts of 40 steps, evaluations at 0 and 80."""
    pairs = (word.partition("=") for word in tiny("algo=ippo", "steps=80", "eval.every=1000"))
    settings = {key: json.loads(value) if value[0] in "[0123456789tf" else value for key, _, value in pairs}
    return settings | {"out": out, "progress": "off"} | more


def recorder() -> tuple[list[tuple[str, Event]], Callback]:
    """Returns a list of calls, and hooks that fill it."""
    calls: list[tuple[str, Event]] = []

    def record(name: str) -> Any:
        return lambda event: calls.append((name, event))

    return calls, Callback(**{name: record(name) for name in POINTS})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a run without hooks."""
    out = tmp_path_factory.mktemp("whole") / "run"
    coterie.train(**small(out))
    return checkpoint_state(out)


@pytest.mark.slow
def test_hooks_are_called_in_the_order_of_a_run_and_change_nothing(tmp_path: Path, whole: dict[str, Any]) -> None:
    calls, hooks = recorder()
    coterie.train(**small(tmp_path / "run"), callbacks=[hooks])
    assert_same(checkpoint_state(tmp_path / "run"), whole)
    assert [(name, event.steps, event.updates) for name, event in calls] == [
        ("on_evaluation", 0, 0),
        ("on_checkpoint", 0, 0),
        ("on_update", 40, 1),
        ("on_rollout", 40, 1),
        ("on_checkpoint", 40, 1),
        ("on_update", 80, 2),
        ("on_rollout", 80, 2),
        ("on_evaluation", 80, 2),
        ("on_checkpoint", 80, 2),
        ("on_end", 80, 2),
    ]
    by_name = {name: event for name, event in calls if name != "on_rollout"}
    assert "eval/return_mean" in by_name["on_evaluation"].metrics
    assert "loss/policy" in by_name["on_update"].metrics
    assert by_name["on_checkpoint"].checkpoint == tmp_path / "run" / "checkpoints" / f"{80:012d}"
    assert by_name["on_end"].checkpoint is None
    assert list(by_name["on_end"].policies) == ["agent"]


@pytest.mark.slow
def test_the_metrics_after_a_rollout_are_those_of_its_episodes(tmp_path: Path) -> None:
    found: list[float] = []
    hooks = Callback(on_rollout=lambda event: found.append(event.metrics.get("rollout/episodes", 0)))
    coterie.train(**small(tmp_path / "run", steps=160), callbacks=[hooks])  # episodes of 25 steps, rollouts of 10
    assert found == [0, 0, 4, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["on_rollout", "on_update", "on_checkpoint"])
def test_a_hook_stops_the_run_with_a_checkpoint(
    point: str, tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A resume calls the hooks that it is given, and ends as the run without hooks."""
    hooks = Callback(**{point: lambda event: event.stop() if event.steps >= 40 else None})
    ends: list[int] = []
    result = coterie.train(
        **small(tmp_path / "run"), callbacks=[hooks, Callback(on_end=lambda e: ends.append(e.steps))]
    )
    assert (result.exit_code, result.summary.steps, ends) == (0, 40, [40])
    assert checkpoint_state(tmp_path / "run")["steps"] == 40
    assert "a callback stopped the run at 40 of 80 steps, checkpoint saved. Continue with:" in capsys.readouterr().err
    calls, hooks = recorder()
    assert coterie.resume(result, callbacks=[hooks]).summary.steps == 80
    assert [(name, event.steps) for name, event in calls if name in {"on_update", "on_end"}] == [
        ("on_update", 80),
        ("on_end", 80),
    ]
    assert_same(checkpoint_state(tmp_path / "run"), whole)


@pytest.mark.slow
def test_a_hook_stops_the_run_at_its_first_evaluation(tmp_path: Path) -> None:
    result = coterie.train(**small(tmp_path / "run"), callbacks=[Callback(on_evaluation=lambda event: event.stop())])
    assert (result.summary.steps, checkpoint_state(tmp_path / "run")["steps"]) == (0, 0)


@pytest.mark.slow
def test_an_exception_in_a_hook_is_raised_as_it_is(tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        raise ZeroDivisionError("own mistake")

    with pytest.raises(ZeroDivisionError, match="own mistake"):
        coterie.train(**small(tmp_path / "run"), callbacks=[Callback(on_update=fail)])
    assert checkpoint_state(tmp_path / "run")["steps"] == 0


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (print, "callbacks: a builtin_function_or_method. Pass a list, [coterie.Callback(on_update=function)]."),
        ([print], "callbacks: print is a builtin_function_or_method. Wrap its functions in coterie.Callback"),
        ([Callback(on_end=3)], "callbacks: on_end=3 cannot be called. Pass a function of one coterie.Event."),  # type: ignore[arg-type]
    ],
)
def test_other_callbacks_are_refused_with_a_fix(callbacks: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        coterie.train(callbacks=callbacks)
    assert message in str(error.value)


class Counter(Callback):
    """Counts evaluations, without calling the constructor of its base class."""

    def __init__(self) -> None:
        self.evaluations = 0

    def on_evaluation(self, event: Event) -> None:
        self.evaluations += 1
        if event.steps:
            event.stop()


def test_methods_of_a_subclass_are_called(tmp_path: Path) -> None:
    counter = Counter()
    result = coterie.train(**small(tmp_path / "run", steps=10_000), callbacks=[counter])
    assert counter.evaluations >= 2
    assert result.summary.steps < 10_000


def test_a_method_of_another_name_is_refused(tmp_path: Path) -> None:
    class Misspelled(Callback):
        def on_evaluate(self, event: Event) -> None:
            raise AssertionError

    with pytest.raises(UserError, match=r"Misspelled.on_evaluate is never called. Did you mean 'on_evaluation'"):
        coterie.train(**small(tmp_path / "run"), callbacks=[Misspelled()])
    assert not (tmp_path / "run").exists()
