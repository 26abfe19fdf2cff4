"""The environment checker: a sound environment has no findings, and each seeded fault is found by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from faults import FAULTS, ForgetsItsGenerator, filled, frogs, method, on_rows, on_spec, on_steps, raising, recalling
from pond import LIMIT, Plain, Pond, Wrapped

from coterie.envs.check import Report, check
from coterie.envs.findings import RULES
from coterie.envs.make import make
from coterie.envs.particle import SCENARIOS
from coterie.envs.world import World
from coterie.errors import UserError
from coterie.types import Row, Step


@pytest.fixture(autouse=True)
def _steady_clock_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Speed is told by a clock that ticks a tenth of a millisecond a look, so that no test depends on the machine."""
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def found(fault: type[Wrapped], world: Callable[[], World] = Pond, steps: int = 15) -> Report:
    return check(lambda copies, seed: fault(world(), copies, seed), steps=steps)


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


# ------------------------------------------------------------------------------------------------------ nothing found


@pytest.mark.parametrize("world", [Pond, Plain])
def test_a_sound_environment_has_no_findings(world: Callable[[], World]):
    report = found(Wrapped, world, steps=100)
    assert report.findings == (), report.render()
    assert report.ok


def test_the_last_observation_and_mask_of_who_was_cut_alone_may_be_shown():
    report = found(recalling(1.0), steps=100)
    assert report.findings == (), report.render()


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_particle_scenario_keeps_the_contract(name: str, actions: str):
    params = {"episode_limit": LIMIT, "actions": actions}
    report = check(lambda n, seed: make(f"particle/{name}", params, n, seed, with_state=True), steps=20, copies=4)
    assert report.findings == (), report.render()


def test_the_report_tells_what_there_is_to_know():
    report = found(Wrapped)
    facts = report.facts
    assert "2 agents of group frogs" in facts["role frog"]
    assert "frogs [2]" in facts["states"]
    assert f"limit {LIMIT}" in facts["episodes"]
    assert "15 steps of 8 copies" in facts["tested"]
    assert "group birds 0, frogs" in facts["random return"]
    assert "steps/s" in facts["speed"]
    assert "pond: keeps the contract" in report.render()


def test_the_random_return_is_the_mean_over_finished_episodes():
    class Paid(Wrapped):
        def changed_step(self, step: Step, before: Row, row: Row) -> Step:
            return replace(step, reward=before.acted[:, None].float())

    assert found(Paid, Plain).facts["random return"] == f"an agent of walker {LIMIT}"


def test_too_few_steps_or_copies_are_refused():
    with pytest.raises(UserError, match="copies=1"):
        check(lambda copies, seed: Wrapped(Plain(), copies, seed), copies=1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_by_its_rule(fault: str):
    rule, broken = FAULTS[fault]
    report = found(broken)
    assert rule in rules(report), report.render()
    for finding in report.findings:
        assert finding.what
        assert "\n" not in finding.what + finding.mend
        assert finding.mend in report.render(width=10_000)


def test_an_environment_that_cannot_be_made_is_a_finding():
    report = check(raising)
    assert [finding.rule for finding in report.findings] == ["raises"]
    assert "making the environment raised RuntimeError: the pond is dry" in report.findings[0].what
    assert not report.ok


def test_a_factory_of_something_else_is_a_finding():
    report = check(lambda copies, seed: object())  # type: ignore[arg-type,return-value]
    assert rules(report) == {"returns"}


def test_a_render_that_is_not_offered_is_a_warning():
    def no_pictures(*_: Any) -> Any:
        raise UserError("this environment draws nothing")

    report = found(method("render", no_pictures))
    assert rules(report) == {"render-missing"}
    assert report.ok


def test_episodes_that_do_not_end_are_told():
    report = found(Wrapped, lambda: Plain(limit=None))
    assert rules(report) == {"no-end"}
    assert report.facts["episodes"] == "none ended"


def test_a_slow_environment_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): float(next(ticks)))
    assert "slow" in rules(found(Wrapped))


def test_an_environment_without_exact_resume_is_not_held_to_it():
    class Inexact(ForgetsItsGenerator):
        def __init__(self, world: World, copies: int, seed: int):
            super().__init__(world, copies, seed)
            self.spec = replace(self.spec, exact_resume=False)

    assert found(Inexact).findings == ()


def test_a_finding_names_step_copy_and_agent():
    def change(step: Step, before: Row, row: Row) -> Step:
        return replace(step, reward=filled(step.reward, (3, 2), float("nan")).where(before.acted[:, None], 0))

    def range_change(row: Row) -> Row:
        return frogs(row, lambda x: filled(x, (3, 1), 7.0))

    assert "copy 3" in found(on_steps(change)).findings[0].what
    what = next(f.what for f in found(on_rows(range_change)).findings if f.rule == "range")
    assert "step 0, copy 3, agent frog_1: obs['frog'] holds values from 7 to 7" in what
    assert "seen" in what


def test_errors_come_before_warnings():
    report = found(on_spec(episode_limit=None, paid_by_group=False))
    assert [finding.severity for finding in report.findings] == ["error", "warning"]
    assert "breaks the contract (1 error, 1 warning)" in report.render()


def test_every_rule_but_speed_has_a_seeded_fault():
    apart = {"render-missing", "no-end", "slow"}
    assert {rule for rule, _ in FAULTS.values()} | apart == set(RULES)
