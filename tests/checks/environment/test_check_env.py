"""`coterie check-env` on user environments: it reports every seeded fault by its rule, and nothing else."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from coterie.__main__ import main
from coterie.checks.environment.contract import check
from coterie.checks.environment.rules import ALL_RULES, INTERFACE_RULES
from gymnasium_faults import SINGLE
from pettingzoo_faults import SEVERAL
from turnfaults import TURNS

CROWD = f"{__name__}:Crowd"
KINDS = {"gymnasium_faults:single": SINGLE, "pettingzoo_faults:several": SEVERAL, "turnfaults:game": TURNS}
EXPECTED = {"episode-limit-undeclared"}
"""Findings of correct environments."""


@pytest.fixture(autouse=True)
def _steady_clock_and_threads(steady_clock: None) -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run_check(capsys: pytest.CaptureFixture[str], name: str, *keys: str) -> tuple[int, dict[str, Any]]:
    code = main(["check-env", name, *keys, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [
        "gymnasium_faults:single",
        "pettingzoo_faults:several",
        "gymnasium_faults:Bare",
        "turnfaults:game",
        "turnfaults:batch",
    ],
)
def test_a_correct_environment_has_no_findings(factory: str, capsys: pytest.CaptureFixture[str]):
    code, report = run_check(capsys, factory)
    assert {finding["rule"] for finding in report["findings"]} <= EXPECTED, report["findings"]
    assert code == 0
    assert report["ok"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"), [(kind, fault) for kind, table in KINDS.items() for fault in table], ids=lambda part: part
)
def test_a_fault_is_reported_by_its_rule_with_a_fix(
    kind: str, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Numbers, flags and spaces of single agents are read by the same functions in all interfaces."""
    monkeypatch.setattr("coterie.checks.environment.contract.check", functools.partial(check, steps=30))
    monkeypatch.setattr("coterie.checks.environment.check_env._STEPS", 80)
    monkeypatch.setattr("coterie.checks.environment.check_env._COMPARED_STEPS", 30)
    rule, message, _ = KINDS[kind][fault]
    code, report = run_check(capsys, kind, f"env.fault={fault}")
    found = [finding for finding in report["findings"] if finding["rule"] == rule]
    assert any(message in finding["message"] for finding in found), report["findings"]
    assert all(finding["fix"] == ALL_RULES[rule].fix for finding in found)
    assert not any("\n" in finding["message"] for finding in found)
    assert code == (1 if ALL_RULES[rule].severity == "error" else 0) == int(not report["ok"]), report["findings"]
    assert {finding["rule"] for finding in report["findings"]} <= {rule, *EXPECTED}, report["findings"]


class Crowd:
    """An environment with PyMARL's interface that reports three agents, but has two."""

    def get_env_info(self):
        return {"n_agents": 3, "n_actions": 2, "obs_shape": 1, "state_shape": 0, "episode_limit": 5}

    def reset(self, seed=None):
        pass

    def step(self, actions):
        return 0.0, True, {}

    def get_obs(self):
        return [[0.0], [0.0]]

    def get_avail_actions(self):
        return [[1, 1], [1, 1]]

    def close(self):
        pass


def test_a_fault_of_a_vectorized_environment_is_reported(capsys: pytest.CaptureFixture[str]):
    """For all of them see test_contract.py."""
    code, report = run_check(capsys, "turnfaults:batch", "env.fault=NaN_is_observed")
    assert "non-finite" in {finding["rule"] for finding in report["findings"]}
    assert code == 1


def test_an_adapter_error_is_reported_under_the_name_of_the_environment(
    capsys: pytest.CaptureFixture[str],
):
    code, report = run_check(capsys, CROWD)
    (finding,) = report["findings"]
    assert (code, finding["rule"]) == (1, "refused")
    assert "get_avail_actions() is of shape (2, 2), but get_env_info() declares (3, 2)" in finding["message"]
    assert "UserError" not in finding["message"]
    assert "trace" not in finding["fix"]
    assert main(["check-env", CROWD]) == 1
    assert capsys.readouterr().out.startswith(f"{CROWD}: failed")


def test_every_rule_has_a_seeded_fault():
    assert {rule for table in KINDS.values() for rule, _, _ in table.values()} >= set(INTERFACE_RULES)
