"""Published tables: their rows, and the settings of the runs that reproduce them."""

from __future__ import annotations

import pytest
import yaml

from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.envs import registry
from coterie.reports.published import Level, load, names
from places import ROOT

TABLES = [load(name) for name in names()]
ROWS = [(t, row, t.algorithms[k % len(t.algorithms)]) for t in TABLES for k, row in enumerate(t.rows.values())]
"""Each row, and each algorithm with some rows."""


def test_the_table_of_papoudakis_has_the_published_levels() -> None:
    table = load("papoudakis2021")
    assert len(table.rows) == 20
    assert table.row("spread").published["mappo"] == Level(-133.54, 3.08)
    assert str(table.row("spread").published["mappo"]) == "-133.54 ± 3.08"
    assert str(table.row("penalty-25").published["iql"]) == "50"
    for row in table.rows.values():
        assert tuple(row.published) == table.columns, row.name
    assert table.algorithms == table.columns
    assert [row.name for row in table.rows.values() if row.confirmed] == ["spread"]


def test_on_and_off_policy_algorithms_have_the_steps_of_the_paper() -> None:
    table = load("papoudakis2021")
    found = {
        name: [table.steps(table.row(row), name) for row in ("spread", "rware-tiny-2p")] for name in ("coma", "vdn")
    }
    assert found == {"coma": [20_000_000, 40_000_000], "vdn": [2_000_000, 4_000_000]}


def test_later_settings_replace_earlier_ones() -> None:
    table = load("papoudakis2021")
    words = table.settings(table.row("spread"), "qmix", 40_000)
    assert [word for word in words if word.startswith("num_envs=")] == ["num_envs=32"]
    assert {"algo=qmix", "env=particle/simple_spread", "env.variant=openai", "steps=40000", "eval.every=1000"} <= set(
        words
    )


@pytest.mark.parametrize(("table", "row", "algo"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_the_settings_of_every_row_are_valid(table, row, algo) -> None:
    config = resolve(table.settings(row, algo, table.steps(row, algo))).config
    assert (config.algo.name, config.steps) == (algo, table.steps(row, algo))
    assert config.env.name in registry.environments()


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"papoudakis: no such table\. Did you mean 'papoudakis2021'\?"):
        load("papoudakis")
    with pytest.raises(UserError, match=r"spraed: not a row of papoudakis2021\. Did you mean 'spread'"):
        load("papoudakis2021").row("spraed")


def test_scores_that_runs_are_compared_with_are_those_of_the_table() -> None:
    table = load("papoudakis2021")
    rows = {word.removeprefix("env="): row for row in table.rows.values() for word in row.settings if "env=" in word}
    entries = yaml.safe_load((ROOT / "src/coterie/config/reference_scores.yaml").read_text())
    assert entries
    for entry in entries:
        for algo, score in entry["levels"].items():
            assert score == pytest.approx(rows[entry["env"]].published[algo].mean, abs=0.05), (entry["env"], algo)
            assert entry["scale"] == rows[entry["env"]].scale
