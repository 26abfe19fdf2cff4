"""What `config.yaml` is written with is what it is read back as, or refused before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assembly.resolve import Resolved, resolve
from coterie.config import sources
from coterie.config.provenance import lines_of, to_yaml
from coterie.config.strict_yaml import parse_settings
from coterie.core.errors import UserError


def resolved(**changed: str) -> Resolved:
    found = resolve(["algo=mappo", "env=particle/simple_spread"])
    return replace(found, config=found.config.model_copy(update={name: Path(text) for name, text in changed.items()}))


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.one_of(st.characters(), st.sampled_from("\n\t\x00\x85\u2028\ud800 :#'\"[]{}&*!|>%@`e1.")), min_size=1)
)
def test_any_text_is_read_back_or_refused(text: str) -> None:
    try:
        written = to_yaml(resolved(out=text))
    except UserError:
        return  # before anything is written
    found = {setting.key: setting.value for setting in sources.from_text(written, "written", str)}
    assert found["out"] == str(Path(text))


@pytest.mark.parametrize("text", ["a\x00b", "a\x85b", "a\x1bb"])
def test_control_characters_are_refused_before_anything_is_written(text: str) -> None:
    with pytest.raises(UserError, match=r"^out: contains the control character"):
        to_yaml(resolved(out=text))


def test_origins_with_line_breaks_stay_in_their_comment() -> None:
    found = resolve(["algo=mappo", "env=particle/simple_spread"])
    origins = dict(found.origins) | {"env.name": "file a\nb.yaml:1"}
    written = to_yaml(replace(found, origins=origins))
    assert sources.from_text(written, "written", str)
    assert "# file a\\nb.yaml:1" in written


@pytest.mark.parametrize("word", ["off", "No", "YES", "on", "True", "FALSE", "null", "nan", "auto", "a/b", "x_1"])
def test_a_word_is_the_same_text_in_yaml_1_1_and_1_2(word: str) -> None:
    (line,) = lines_of({"key": word})
    assert yaml.safe_load(line) == {"key": word}
    assert parse_settings(line, "file") == [("key", word, 1)]
