"""Folders of searches that were edited, damaged or made by someone else."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.sweeps.job_processes import _open_log
from coterie.sweeps.tuning.study import STATES, TunePlan, ask, make_plan, open_study, settings_of_trial

WIDER = {"name": "FloatDistribution", "attributes": {"low": 1e-5, "high": 10.0, "log": True, "step": None}}
CHOICE = {"name": "CategoricalDistribution", "attributes": {"choices": ["1e-3 algo.network=evil:make"]}}
WORDS = ("algo=ippo", "env=matrix/climbing", "steps=1000", "algo.lr=log(1e-5,1e-2)")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> TunePlan:
    """A search whose study has a finished trial and one that runs."""
    found = make_plan(WORDS, seeds="1", out=tmp_path_factory.mktemp("intact") / "study")
    found.folder.mkdir()
    study = open_study(found)
    first = ask(found, study)
    first.set_user_attr("values", [1.0])
    first.set_user_attr("reason", "")
    study.tell(first, 1.0)
    ask(found, study)
    return found


@pytest.fixture
def plan(intact: TunePlan, tmp_path: Path) -> TunePlan:
    """A copy of the search."""
    shutil.copytree(intact.folder, tmp_path / "study")
    return replace(intact, folder=tmp_path / "study")


def _edit(plan: TunePlan, statement: str, *values: Any) -> None:
    with sqlite3.connect(plan.folder / "study.db") as database:
        database.execute(statement, values)


def _set(plan: TunePlan, name: str, value: Any) -> None:
    statement = "update trial_user_attributes set value_json=? where key=?"
    _edit(plan, statement, json.dumps(value), name)


def test_an_intact_study_opens(plan: TunePlan) -> None:
    assert [STATES[trial.state.name] for trial in open_study(plan).trials] == ["finished", "running"]


@pytest.mark.parametrize(
    "edit",
    [
        "update trial_params set param_name='algo.network'",
        "update trial_params set param_value=7",
        "update trial_params set param_value=-1e-3",
        "update trial_params set param_value='evil:make'",
        f"update trial_params set distribution_json='{json.dumps(WIDER)}', param_value=7",
        f"update trial_params set distribution_json='{json.dumps(CHOICE)}', param_value=0",
    ],
)
def test_settings_that_are_not_searched_are_refused(edit: str, plan: TunePlan) -> None:
    _edit(plan, edit)
    with pytest.raises(UserError, match=r"study\.db: .*Choose another folder with --out\.$") as refusal:
        open_study(plan)
    assert "\n" not in str(refusal.value)


def test_settings_that_someone_has_proposed_are_refused(plan: TunePlan) -> None:
    open_study(plan).enqueue_trial({"algo.lr": 7.0})
    study = open_study(plan)
    with pytest.raises(UserError, match=r"study\.db: trial 2 is not of this search, algo\.lr=7\.0 is not searched"):
        settings_of_trial(plan, ask(plan, study))


@pytest.mark.parametrize(("name", "value"), [("values", ["a"]), ("values", []), ("values", 3), ("reason", 1)])
def test_results_of_other_types_are_refused(name: str, value: Any, plan: TunePlan) -> None:
    _set(plan, name, value)
    with pytest.raises(UserError, match=r"study\.db: .*Choose another folder with --out\.$"):
        open_study(plan)


@pytest.mark.parametrize("text", ["[1]", "[1", "{}", '{"settings": 1}', "3"])
def test_damaged_identities_are_one_line(text: str, plan: TunePlan) -> None:
    _edit(plan, "update study_user_attributes set value_json=? where key='identity'", text)
    with pytest.raises(UserError) as refusal:
        open_study(plan)
    assert "\n" not in str(refusal.value)


def test_damaged_distributions_are_one_line(plan: TunePlan) -> None:
    _edit(plan, "update trial_params set distribution_json='{'")
    with pytest.raises(UserError, match="cannot be used as a study of `coterie tune`"):
        open_study(plan)


def test_a_symbolic_link_to_a_study_is_refused(plan: TunePlan, tmp_path: Path) -> None:
    (plan.folder / "study.db").rename(tmp_path / "other.db")
    (plan.folder / "study.db").symlink_to(tmp_path / "other.db")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(UserError, match=r"study\.db: it is a symbolic link"):
        open_study(plan)
    assert (tmp_path / "other.db").read_bytes() == before


def test_logs_of_jobs_do_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("export A=1\n")
    (tmp_path / "seed0.log").symlink_to(tmp_path / "profile")
    assert _open_log(tmp_path / "seed0.log", ["train"]) is None
    assert (tmp_path / "profile").read_text() == "export A=1\n"
