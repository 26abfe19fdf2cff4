"""Folders of searches that were edited, damaged or made by someone else."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from coterie.commands.sweep_processes import _open_log
from coterie.commands.tuning.dimensions import Choices, NumberRange
from coterie.commands.tuning.plan import TunePlan, make_plan
from coterie.commands.tuning.tune import open_study
from coterie.core.errors import UserError

pytest.importorskip("optuna")
WORDS = ("algo=ippo", "env=matrix/climbing", "steps=1000", "algo.lr=log(1e-5,1e-2)")


@pytest.fixture
def plan(tmp_path: Path) -> TunePlan:
    """A search whose study has a finished trial and one that runs."""
    found = make_plan(WORDS, seeds="1", out=tmp_path / "study")
    found.folder.mkdir()
    study = open_study(found)
    study.tell(study.ask(), "finished", values=[1.0])
    study.ask()
    return found


def _edit(plan: TunePlan, statement: str, *values: Any) -> None:
    with sqlite3.connect(plan.folder / "study.db") as database:
        database.execute(statement, values)


def _set(plan: TunePlan, name: str, value: Any) -> None:
    statement = "update trial_user_attributes set value_json=? where key=?"
    _edit(plan, statement, json.dumps(value), name)


def test_an_intact_study_opens(plan: TunePlan) -> None:
    assert [record.state for record in open_study(plan).records] == ["finished", "running"]


@pytest.mark.parametrize("settings", [{"algo.network": "evil:make"}, {"algo.lr": "7"}, {"algo.lr": 1}, [1], 3, "text"])
def test_settings_that_are_not_searched_are_refused(settings: Any, plan: TunePlan) -> None:
    _set(plan, "settings", settings)
    with pytest.raises(UserError, match=r"study\.db: .*Choose another folder with --out\.$") as refusal:
        open_study(plan)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"), [("values", ["a"]), ("values", []), ("values", 3), ("reason", 1), ("runs", [1]), ("runs", 1)]
)
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
    with pytest.raises(UserError, match="not a study of `coterie tune`"):
        open_study(plan)


def test_a_study_without_the_settings_of_trial_0_is_one_line(plan: TunePlan) -> None:
    _edit(plan, "delete from study_user_attributes where key='in_default'")
    with pytest.raises(UserError, match="not a study of `coterie tune`"):
        open_study(plan).ask()


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


def test_dimensions_contain_what_they_suggest() -> None:
    numbers = NumberRange("algo.lr", 1e-5, 1e-2, log=True)
    assert [numbers.contains(text) for text in ("1e-05", "0.01", "0.02", "nan", "x")] == [True, True, *[False] * 3]
    whole = NumberRange("num_envs", 2, 8, integer=True)
    assert [whole.contains(text) for text in ("2", "8", "9", "2.5")] == [True, True, False, False]
    assert [Choices("algo.rnn", ("gru", "none")).contains(text) for text in ("gru", "lstm")] == [True, False]
