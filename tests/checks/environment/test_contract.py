"""The environment checker has no findings for a correct environment, and reports every seeded fault by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from contract_worlds import LIMIT, Plain, Pond, Wrapped
from coterie.checks.environment.contract import Report, check
from coterie.checks.environment.rules import RULES
from coterie.core.errors import UserError
from coterie.core.types import Step, Timestep
from coterie.envs.make import make
from coterie.envs.worlds.particle import SCENARIOS
from coterie.envs.worlds.world import World
from faults import (
    FAULTS,
    ForgetsItsGenerator,
    filled,
    frogs,
    method,
    on_spec,
    on_steps,
    on_timesteps,
    raising,
    recalling,
)


@pytest.fixture(autouse=True)
def _steady_clock_and_one_thread(steady_clock: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("coterie.checks.environment.contract.SHORT_RUN", LIMIT + 3)  # with an end of episodes
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def found(fault: type[Wrapped], world: Callable[[], World] = Pond, steps: int = 15) -> Report:
    return check(lambda num_envs, seed: fault(world(), num_envs, seed), steps=steps)


def rules(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


# ------------------------------------------------------------------------------------------------------ no findings


@pytest.mark.slow
@pytest.mark.parametrize("world", [Pond, Plain])
def test_a_correct_environment_has_no_findings(world: Callable[[], World]):
    report = found(Wrapped, world, steps=100)
    assert report.findings == (), report.render()
    assert report.ok


@pytest.mark.slow
def test_agents_truncated_on_their_own_may_show_their_last_observation_and_mask():
    report = found(recalling(1.0), steps=100)
    assert report.findings == (), report.render()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "actions"), [*((name, "discrete") for name in sorted(SCENARIOS)), ("simple_world_comm", "continuous")]
)
def test_every_particle_scenario_passes(name: str, actions: str):
    params = {"episode_limit": LIMIT, "actions": actions}
    report = check(lambda n, seed: make(f"particle/{name}", params, n, seed, with_state=True), steps=20, num_envs=4)
    assert report.findings == (), report.render()


@pytest.mark.slow
def test_the_report_summarizes_the_environment():
    report = found(Wrapped)
    summary = report.summary
    assert ", of team frogs; observes" in summary["role frog"]
    assert "frogs [2]" in summary["states"]
    assert f"limit {LIMIT}" in summary["episodes"]
    assert "15 steps of 8 environments" in summary["tested"]
    assert "per group birds 0, frogs" in summary["random return"]
    assert "steps/s" in summary["speed"]
    assert "pond: passed" in report.render()


def test_the_random_return_is_the_mean_over_finished_episodes():
    class RewardedAlgorithm(Wrapped):
        def changed_step(self, step: Step, before: Timestep, timestep: Timestep) -> Step:
            return replace(step, reward=before.acted[:, None].float())

    assert found(RewardedAlgorithm, Plain).summary["random return"] == f"per agent walker {LIMIT}"


def test_the_random_return_leaves_out_agents_that_only_get_group_rewards():
    class GroupRewarded(Wrapped):
        def changed_step(self, step: Step, before: Timestep, timestep: Timestep) -> Step:
            reward = torch.zeros_like(step.reward)
            reward[:, 0] = before.acted.float()  # of the stork
            return replace(step, reward=reward, group_reward=before.acted[:, None].float() * torch.tensor([0.0, 1.0]))

    class Unrewarded(GroupRewarded):
        def changed_step(self, step: Step, before: Timestep, timestep: Timestep) -> Step:
            return replace(super().changed_step(step, before, timestep), reward=torch.zeros_like(step.reward))

    text = found(GroupRewarded).summary["random return"]
    assert text.startswith("per group birds 0, frogs ")
    assert "per agent stork " in text
    assert "frog " not in text
    assert "per agent" not in found(Unrewarded).summary["random return"]


def test_too_few_environments_raise_an_error():
    with pytest.raises(UserError, match="num_envs=1"):
        check(lambda num_envs, seed: Wrapped(Plain(), num_envs, seed), num_envs=1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_violates_its_rule(fault: str):
    rule, broken = FAULTS[fault]
    report = found(broken)
    text = report.render(width=10_000)
    assert rule in rules(report), text
    for finding in report.findings:
        assert finding.evidence
        assert "\n" not in finding.evidence + finding.fix
        assert finding.fix in text


def test_an_environment_that_cannot_be_made_is_a_finding():
    report = check(raising)
    assert [finding.name for finding in report.findings] == ["raises"]
    assert "making the environment raised RuntimeError: the pond is dry" in report.findings[0].evidence
    assert not report.ok


def test_a_factory_that_returns_another_type_is_a_finding():
    report = check(lambda num_envs, seed: object())  # type: ignore[arg-type,return-value]
    assert rules(report) == {"return-type"}


def test_a_missing_render_is_a_warning():
    def no_images(*_: Any) -> Any:
        raise UserError("this environment cannot be drawn")

    report = found(method("render", no_images))
    assert rules(report) == {"render-missing"}
    assert report.ok


def test_episodes_that_never_end_are_a_warning():
    report = found(Wrapped, lambda: Plain(limit=None))
    assert rules(report) == {"no-episode-end"}
    assert report.summary["episodes"] == "none ended"


def test_a_slow_environment_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.checks.environment.contract.perf_counter", lambda ticks=count(): float(next(ticks)))
    assert "slow" in rules(found(Wrapped))


def test_exact_resume_is_checked_only_if_it_is_declared():
    class Inexact(ForgetsItsGenerator):
        def __init__(self, world: World, num_envs: int, seed: int):
            super().__init__(world, num_envs, seed)
            self.spec = replace(self.spec, exact_resume=False)

    assert found(Inexact).findings == ()


@pytest.mark.slow
def test_a_finding_names_step_environment_and_agent():
    def change(step: Step, before: Timestep, timestep: Timestep) -> Step:
        return replace(step, reward=filled(step.reward, (3, 2), float("nan")).where(before.acted[:, None], 0))

    def range_change(timestep: Timestep) -> Timestep:
        return frogs(timestep, lambda x: filled(x, (3, 1), 7.0))

    assert "environment 3" in found(on_steps(change)).findings[0].evidence
    message = next(f.evidence for f in found(on_timesteps(range_change)).findings if f.name == "out-of-bounds")
    assert "step 0, environment 3, agent frog_1: obs['frog'] has values from 7 to 7" in message
    assert "seen" in message


def test_errors_come_before_warnings():
    report = found(on_spec(episode_limit=None, has_group_reward=False))
    assert [finding.severity for finding in report.findings] == ["error", "warning"]
    assert "failed (1 error, 1 warning)" in report.render()


def test_every_rule_has_a_seeded_fault_or_its_own_test():
    tested_here = {"render-missing", "no-episode-end", "slow", "channels-first"}
    assert {rule for rule, _ in FAULTS.values()} | tested_here == set(RULES)
