"""The mutation campaign of benchmarks/: sampling, trials, and the score, with mutants written by hand."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from places import ROOT

BENCHMARKS = ROOT / "benchmarks"
SOURCE = '''def double(x: int | None = 2) -> int:
    """Returns 2 + 2."""
    return x + x


class Number:
    def half(self) -> float:
        return 4 / 2
'''


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def by_hand(*changes: tuple[str, str]) -> Callable[[str], Any]:
    """Mutations that replace the first occurrence of a text, in place of Cosmic Ray's."""

    def mutations(source: str) -> Any:
        for old, new in changes:
            start = source.index(old)
            line = source.count("\n", 0, start) + 1
            place = line, start - (source.rfind("\n", 0, start) + 1)
            yield place, lambda old=old, new=new: source.replace(old, new, 1)

    return mutations


def test_a_sample_changes_as_many_places_as_possible_and_leaves_annotations_out(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
):
    cases = script("mutant_cases")
    operators = (("x + x", "x - x"), ("x + x", "x * x"), ("x + x", "x +"), ("x + x", "(x + x)"))
    annotation, other = ("int | None", "int & None"), ("4 / 2", "4 * 2")
    monkeypatch.setattr(cases, "mutations", by_hand(*operators, annotation, other))
    for seed in "abc":
        two, total = cases.sample(SOURCE, 2, seed)
        assert {mutant.where for mutant in two} == {"double", "Number.half"}
        everything, total = cases.sample(SOURCE, 9, seed)
        assert {(m.line, m.where, m.before, m.after) for m in everything} == {
            (3, "double", "return x + x", "return x - x"),
            (3, "double", "return x + x", "return x * x"),
            (8, "Number.half", "return 4 / 2", "return 4 * 2"),
        }
        assert total == 3
        assert all(mutant.source != SOURCE for mutant in everything)


def test_every_module_has_tests_and_equivalent_mutants_have_reasons(script: Callable[[str], ModuleType]):
    cases, mutants = script("mutant_cases"), script("mutants")
    for module in cases.CASES:
        assert (cases.PACKAGE / module).is_file(), module
        assert cases.tests_of(module), module
        assert all((ROOT / name).is_file() for name in cases.tests_of(module)), module
    for module, entries in mutants.equivalents().items():
        source = " ".join(line.strip() for line in (cases.PACKAGE / module).read_text().splitlines())
        for entry in entries:
            assert set(entry) == {"where", "before", "after", "reason"}
            assert entry["before"] in source, f"{module}: remove the mutant of {entry['before']}"
            assert entry["before"] != entry["after"]


def test_equivalent_mutants_do_not_count(script: Callable[[str], ModuleType]):
    score = script("mutant_page").score
    assert (score(19, 20, 0), score(19, 20, 1), score(18, 20, 1)) == (0.95, 1.0, 18 / 19)
    assert score(0, 3, 3) is None


def test_the_page_marks_modules_that_changed_since(script: Callable[[str], ModuleType]):
    """If this fails: run the module again, or mark it with `python benchmarks/mutants.py --write`."""
    content = json.loads((BENCHMARKS / "results" / "mutants.json").read_text())
    page = script("mutant_page").page
    assert page(content) == (BENCHMARKS / "results" / "mutants.md").read_text()
    module, row = next(iter(content["modules"].items()))
    other = content | {"modules": {module: row | {"module_hash": "other"}}}
    assert f"({row['revision']})" in page(other)


@pytest.mark.slow
def test_a_tiny_campaign_counts_killed_and_surviving_mutants(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Mutants of math/choices.py: a wrong sum, one that never ends, and one that is equal."""
    mutants, cases = script("mutants"), script("mutant_cases")
    changes = (
        ("for top in tops]).sum(0)", "for top in tops]).sum(0) + 1"),
        ("tops = [part", "while True: pass\n    tops = [part"),
        ("return logits if mask is None", "return logits if mask is None or False"),
    )
    monkeypatch.setattr(cases, "mutations", by_hand(*changes))
    monkeypatch.setattr(mutants, "_limit", lambda seconds: 3 + 2 * seconds)
    monkeypatch.setattr(mutants, "equivalents", dict)
    monkeypatch.setattr(mutants, "version", lambda package: "none")
    out = tmp_path / "mutants.json"
    before = {path: path.read_bytes() for path in (cases.PACKAGE / "math").glob("*.py")}
    assert mutants.main(["--only", "math/choices.py", "--out", str(out)]) == 1, "a score below 95%"
    row = json.loads(out.read_text())["modules"]["math/choices.py"]
    assert (row["mutants"], row["run"], row["killed"], row["timeouts"]) == (3, 3, 2, 1)
    assert row["score"] == pytest.approx(2 / 3)
    assert [entry["where"] for entry in row["survived"]] == ["mask_logits"]
    assert "| math/choices.py | 3 | 3 | 2 | 1 | 1 | 0 | 66.7% | 66.7% |" in out.with_suffix(".md").read_text()
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(SystemExit):
        mutants.main(["--only", "math/unknown.py", "--out", str(out)])


def test_only_survivors_are_repeated_and_those_with_a_reason_are_equivalent(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    mutants, cases, runs = script("mutants"), script("mutant_cases"), script("mutant_runs")
    changes = (("sum(0)", "sum(0) + 1"), ("return logits if mask is None", "return logits if mask is None or False"))
    monkeypatch.setattr(cases, "mutations", by_hand(*changes))
    repeated = []

    def verdicts(module: str, found: list[Any]) -> list[Any]:
        """All survive at first; those in `taken` do not when they are repeated."""
        repeated.append([mutant.where for mutant in found])
        killed = len(repeated) > 1
        return [
            runs.Verdict(runs.KILLED if killed and m.where == "taken" else runs.SURVIVED, 0, 1.0, "") for m in found
        ]

    monkeypatch.setattr(mutants, "_verdicts", verdicts)
    monkeypatch.setattr(mutants, "equivalents", dict)
    monkeypatch.setattr(mutants, "version", lambda package: "none")
    out = tmp_path / "mutants.json"
    given = ["--only", "math/choices.py", "--out", str(out)]
    assert mutants.main(given) == 1
    reasons = {"mask_logits": "Equal."}
    monkeypatch.setattr(mutants, "reason", lambda module, mutant: reasons.get(mutant.where))
    assert mutants.main(["--write", "--out", str(out)]) == 0

    def row() -> dict[str, Any]:
        return json.loads(out.read_text())["modules"]["math/choices.py"]

    assert [entry["reason"] for entry in row()["equivalent"]] == ["Equal."]
    assert (row()["score"], row()["run"], [entry["where"] for entry in row()["survived"]]) == (0, 2, ["taken"])
    assert mutants.main([*given, "--survivors"]) == 0
    assert (row()["score"], row()["run"], row()["killed"], row()["survived"]) == (1, 2, 1, [])
    assert row()["repeated"]
    assert script("mutant_page").first_score(row()) == 0, "before tests were added"
    assert script("mutant_page").first_score({"repeated": "a1b2c3", "killed": 2, "run": 2, "equivalent": []}) is None
    assert [len(found) for found in repeated] == [2, 1]
    later = row() | {"killed": 0, "survived": [], "equivalent": [{"where": "best"}]}
    assert mutants.merged(row(), later)["survived"] == [{"where": "best"}], "no mutant gets lost"
    with pytest.raises(ValueError, match="has changed since"):
        mutants.merged(row(), row() | {"module_hash": "other"})


def test_a_second_sample_has_other_mutants_and_is_recorded_next_to_the_first(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    mutants, cases, runs = script("mutants"), script("mutant_cases"), script("mutant_runs")
    masked = "return logits if mask is None"
    monkeypatch.setattr(cases, "mutations", by_hand(*((masked, f"{masked} or {i}") for i in range(5))))
    drawn: list[set[str]] = []
    killed = runs.Verdict(runs.KILLED, 1, 1.0, "")

    def verdicts(module: str, found: list[Any]) -> list[Any]:
        """One mutant of each sample survives, until it is repeated."""
        drawn.append({mutant.after for mutant in found})
        return [*[killed] * (len(found) - 1), killed if len(found) == 1 else runs.Verdict(runs.SURVIVED, 0, 1.0, "")]

    monkeypatch.setattr(mutants, "_verdicts", verdicts)
    monkeypatch.setattr(mutants, "equivalents", dict)
    monkeypatch.setattr(mutants, "version", lambda package: "none")
    out = tmp_path / "mutants.json"
    given = ["--only", "math/choices.py", "--sample", "2", "--out", str(out)]
    with pytest.raises(ValueError, match="no first sample"):
        mutants.main([*given, "--second"])
    mutants.main(given)
    first = json.loads(out.read_text())["modules"]
    for seed in "1234":
        mutants.main([*given, "--second", "--seed", seed])
        assert len(drawn[-1] | drawn[0]) == 4, "no mutant is in both samples"
    mutants.main([*given, "--second", "--survivors"])
    assert len(drawn[-1]) == 1
    assert drawn[-1] < drawn[-2]
    content = json.loads(out.read_text())
    assert content["modules"] == first
    row = content["second"]["math/choices.py"]
    assert (row["seed"], row["run"], row["first_killed"], row["killed"], row["survived"]) == (4, 2, 1, 2, [])
    page = out.with_suffix(".md").read_text()
    assert "| math/choices.py | 4 | 2 | 1 | 2 | 0 | 50.0% | 100.0% |" in page
    assert "| **all** |  | 2 | 1 | 2 | 0 | 50.0% | 100.0% |  |" in page
    assert "Second sample" not in script("mutant_page").page({**content, "second": {}})
