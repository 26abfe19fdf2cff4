"""`coterie check-algo`: Coterie's own algorithms pass, and each deliberately broken one is recognized by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import coterie
from broken_algorithms import BROKEN
from coterie.__main__ import main
from coterie.algos import registry
from coterie.algos.ppo import PPO
from coterie.checks.algorithm.check_algorithm import CHECKS, run_checks, subject_of_name
from coterie.checks.algorithm.mistakes import MISTAKES
from coterie.core.errors import UserError
from coterie.kernels import switch
from places import ROOT

OTHERS = ("poca", "pqn_qmix")
"""Algorithms of teams that learn from rewards of groups, with replayed and with new experience."""
LEARNING = {"reward", "observation", "group-reward", "discount", "time-limit", "masked-value", "entropy", "recall"}
"""Checks that train until greedy choices are right, which all algorithms learn in `test_probes.py`, too."""
PARENTS = {"mappo": LEARNING, "qmix": {"masked-value", "discount"}, "matd3": set[str](), "masac": set[str]()}
"""Algorithms of the classes that the broken ones inherit from, and the checks of `LEARNING` that find those of each."""


@pytest.fixture(autouse=True)
def kernels():
    switch.configure("auto")
    yield
    switch.configure("off")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PARENTS, *OTHERS])
def test_every_class_of_coterie_passes(name):
    """Also the checks that find the mistakes of the broken algorithms that inherit from it."""
    checks = [check for check in CHECKS if check not in LEARNING - PARENTS.get(name, set())]
    report = run_checks(subject_of_name(name), checks)
    assert report.mistakes == (), report.render()
    passed = {result.check for result in report.results if result.status == "passed"}
    skipped = {result.check: result.reason for result in report.results if result.status == "skipped"}
    assert passed | skipped.keys() == set(checks)
    assert skipped.keys() <= {"entropy", "values", "recall", "hidden-state"}
    assert ("hidden-state" in passed) == registry.algorithm(name).capabilities.rnn
    assert ("recall" in passed) == (name == "mappo")
    parent = registry.algorithm(name)
    assert {check for broken, checks in BROKEN.values() if issubclass(broken, parent) for check in checks} <= passed


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [mistake for mistake in BROKEN if mistake != "truncation-as-termination"])
def test_a_broken_algorithm_is_recognized_by_name(mistake):
    algorithm, checks = BROKEN[mistake]
    report = coterie.check_algorithm(algorithm, only=checks)
    assert not report.ok
    assert report.mistakes == (mistake,), report.render()
    for finding in report.findings:
        assert MISTAKES[mistake].meaning in finding.evidence
        assert finding.fix == MISTAKES[mistake].fix


def test_checks_that_do_not_apply_are_skipped_with_a_reason():
    report = coterie.check_algorithm("random", only=["updates", "reward", "values", "recall"])
    assert report.ok
    reasons = {result.check: result.reason for result in report.results if result.status == "skipped"}
    assert reasons["reward"] == "the algorithm does not learn (Capabilities.learns)"
    assert "has no value of a timestep" in reasons["values"]
    assert "has no setting rnn" in reasons["recall"]
    text = " ".join(report.render().split())
    assert reasons["values"] in text


@pytest.mark.slow
def test_the_value_before_a_time_limit_names_truncation():
    """The sentence with the measured and the expected value, and the place to look at."""
    report = coterie.check_algorithm(BROKEN["truncation-as-termination"][0], only=["values"])
    assert report.mistakes == ("truncation-as-termination",)
    (finding,) = report.findings
    assert finding.evidence.startswith("value of the last timestep before a time limit is ")
    assert finding.evidence.endswith("expected 0.5: truncation is treated as termination.")
    assert "broken_algorithms.py:" in finding.where
    assert "TruncationAsTermination.update" in finding.where
    assert all(len(line) <= 80 for line in report.render().splitlines() if not line.startswith("  see: "))


@pytest.mark.slow
def test_the_command_prints_progress_and_a_table_and_ends_with_1_if_a_check_fails(capsys):
    assert main(["check-algo", "broken_algorithms:NotFinite", "--only", "updates", "--only", "isolation"]) == 1
    output = capsys.readouterr()
    assert "broken_algorithms:NotFinite: failed (1 passed, 1 failed)" in output.out
    assert "error: non-finite" in output.out
    assert "update 1 returned loss/policy=nan" in output.out
    assert output.err.split()[:2] == ["updates", "failed"]


@pytest.mark.slow
def test_the_command_passes_and_prints_json(capsys):
    assert main(["check-algo", "mappo/original", "algo.lr=3e-4", "--only", "resume", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["algo"] == "mappo/original"
    assert report["ok"] is True
    assert [(check["check"], check["status"]) for check in report["checks"]] == [("resume", "passed")]


def test_settings_of_the_user_are_kept():
    report = coterie.check_algorithm("ippo", only=["discount"], gamma=0.99)
    assert [result.reason for result in report.results] == [
        "algo.gamma=0.99 is too close to 0 or 1 to tell discounts apart"
    ]


def test_an_error_of_the_algorithm_is_one_line_with_its_file_and_line():
    report = coterie.check_algorithm(BROKEN["raises"][0], only=["updates", "determinism"])
    assert [result.status for result in report.results] == ["failed", "skipped"]
    source = (ROOT / "tests" / "helpers" / "broken_algorithms.py").read_text(encoding="utf-8")
    line = source[: source.index("1 / 0")].count("\n") + 1
    expected = f"update raised ZeroDivisionError: division by zero (broken_algorithms.py:{line})"
    assert report.findings[0].evidence.startswith(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mapo", "there is no algorithm 'mapo'. Did you mean"),
        ("nowhere:Mine", "there is no module 'nowhere'"),
        ("mappo env.size=3", "env.size=3: not a setting of the algorithm"),
        ("mappo algo.lrr=3", "algo.lrr"),
        ("mappo --only resum", "--only resum: there is no such check. Did you mean 'resume'"),
        ("frozen", "algo=frozen: nothing to check"),
        ("places:ROOT", "algorithm 'places:ROOT'"),
    ],
)
def test_mistakes_in_the_command_are_one_line_errors(words, expected, capsys):
    assert main(["check-algo", *words.split()]) == 2
    output = capsys.readouterr()
    assert expected in output.err
    assert output.err.count("\n") == 1


def test_only_classes_of_algorithms_are_accepted():
    with pytest.raises(UserError, match="not an algorithm"):
        coterie.check_algorithm(dict)
    with pytest.raises(UserError, match="lr='fast'"):
        coterie.check_algorithm(PPO, lr="fast")


def test_every_check_and_every_mistake_is_documented():
    page = (ROOT / "docs" / "how-to" / "check-an-algorithm.md").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"| `{name}` |" not in page] == []
    assert [name for name in MISTAKES if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_the_algorithm_of_the_tutorial_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(ROOT) / "examples"))
    checks = ["updates", "determinism", "isolation", "resume", "masks", "dead-agents", "episode-ends"]
    report = coterie.check_algorithm("own_algorithm:ActorCritic", only=checks)
    sys.modules.pop("own_algorithm")
    assert [result.status for result in report.results] == ["passed"] * len(checks), report.render()
