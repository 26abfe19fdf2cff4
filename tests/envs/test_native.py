"""`coterie check-env` on a user's own environments: every seeded fault is found by name, and sound ones have none."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from herdfaults import SEVERAL
from ownfaults import SINGLE
from turnfaults import BATCH, TURNS

from coterie.__main__ import main
from coterie.envs.check import check
from coterie.envs.native.rules import ALL, NATIVE

KINDS = {"ownfaults:single": SINGLE, "herdfaults:several": SEVERAL, "turnfaults:game": TURNS}
BATCHED = [fault for fault in BATCH if not fault.startswith(("render_", "no_spec"))][::3]
"""A third of the faults of batches; `test_check.py` has all of them, without the command."""
ALSO = {"limit-undeclared"}
"""What is told of the sound ones as well."""


@pytest.fixture(autouse=True)
def _steady_clock_and_short_trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Speed is told by a clock that ticks a tenth of a millisecond a look, so that no test depends on the machine."""
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def checked(capsys: pytest.CaptureFixture[str], name: str, *keys: str) -> tuple[int, dict[str, Any]]:
    code = main(["check-env", name, *keys, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "factory",
    ["ownfaults:single", "herdfaults:several", "ownfaults:Bare", "turnfaults:game", "turnfaults:batch"],
)
def test_a_sound_environment_has_no_findings(factory: str, capsys: pytest.CaptureFixture[str]):
    code, report = checked(capsys, factory)
    assert {finding["rule"] for finding in report["findings"]} <= ALSO, report["findings"]
    assert code == 0
    assert report["ok"]


@pytest.mark.parametrize(
    ("kind", "fault"), [(kind, fault) for kind, table in KINDS.items() for fault in table], ids=lambda part: part
)
def test_a_fault_is_found_by_name_with_its_mend(kind: str, fault: str, capsys: pytest.CaptureFixture[str]):
    rule, words, _ = KINDS[kind][fault]
    code, report = checked(capsys, kind, f"env.fault={fault}")
    found = [finding for finding in report["findings"] if finding["rule"] == rule]
    assert any(words in finding["what"] for finding in found), report["findings"]
    assert all(finding["mend"] == ALL[rule].mend for finding in found)
    assert not any("\n" in finding["what"] for finding in found)
    assert code == (1 if ALL[rule].severity == "error" else 0) == int(not report["ok"]), report["findings"]
    assert {finding["rule"] for finding in report["findings"]} <= {rule, *ALSO}, report["findings"]


@pytest.mark.parametrize("fault", BATCHED)
def test_a_fault_of_a_batch_is_found_by_its_rule(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("coterie.envs.check.check", functools.partial(check, steps=15))
    rule = BATCH[fault][0]
    code, report = checked(capsys, "turnfaults:batch", f"env.fault={fault}")
    assert rule in {finding["rule"] for finding in report["findings"]}, report["findings"]
    assert code == int(not report["ok"])


class Crowd:
    """Of PyMARL's kind, and says that there are three agents where there are two."""

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


def test_what_an_adapter_refuses_is_told_in_its_own_words_under_the_environments_name(
    capsys: pytest.CaptureFixture[str],
):
    code, report = checked(capsys, "test_native:Crowd")
    (finding,) = report["findings"]
    assert (code, finding["rule"]) == (1, "refused")
    assert "get_avail_actions() is of shape (2, 2), and get_env_info() says (3, 2)" in finding["what"]
    assert "UserError" not in finding["what"]
    assert "trace" not in finding["mend"]
    assert main(["check-env", "test_native:Crowd"]) == 1
    assert capsys.readouterr().out.startswith("test_native:Crowd: breaks the contract")


@pytest.mark.parametrize("kind", ["ownfaults:single", "herdfaults:several"])
def test_there_are_twenty_faults_of_each_kind(kind: str):
    assert len({(rule, words) for rule, words, _ in KINDS[kind].values()}) >= 20
    assert len(BATCHED) >= 20


def test_every_rule_has_a_seeded_fault():
    assert {rule for table in KINDS.values() for rule, _, _ in table.values()} >= set(NATIVE)
