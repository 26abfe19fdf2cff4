"""Reading of manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from coterie.core.errors import UserError
from coterie.runs.folder import RunFolder
from coterie.runs.manifest import read_manifest
from mutations import FUZZ, assert_one_line, mutated

MANIFEST = {
    "started": "2026-01-01",
    "command": ["coterie", "train"],
    "seed": 3,
    "versions": {"coterie": "0.2.0"},
    "env": "e",
    "random": {"a": -1.5},
    "levels": {"random": {"a": -1.5}},
    "environment": {"version": "1"},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"random": [1]}, "random=[1]: expected a mapping in braces"),
        ({"levels": {"random": {"a": "x"}}}, "levels.random.a=x: expected a number"),
        ({"versions": None}, "versions=null: expected a mapping in braces"),
        ({"seed": "x"}, "seed=x: expected an integer"),
        ({"env": 1}, "env=1: expected text"),
    ],
)
def test_entries_of_another_type_are_refused(change, reason, tmp_path: Path):
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(MANIFEST))
    assert read_manifest(file) == MANIFEST
    file.write_text(json.dumps(MANIFEST | change))
    with pytest.raises(
        UserError, match=rf"manifest\.json: cannot be read \({re.escape(reason)}\)\. Restore it from a backup"
    ):
        read_manifest(file)


@pytest.mark.slow
@FUZZ
@given(content=mutated(json.dumps(MANIFEST).encode()))
def test_mutated_manifests_are_read_or_refused_in_one_line(content, tmp_path: Path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "manifest.json").write_bytes(content)
    try:
        RunFolder.open(tmp_path).read_manifest()
    except UserError as error:
        assert_one_line(str(error))
