"""Parser of `key=value` settings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from coterie.assembly.resolve import resolve
from coterie.config.overrides import canonical, combinations, parse, parse_all
from coterie.core.errors import UserError
from mutations import FUZZ, assert_one_line, mutated


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3", 3),
        ("a=-3", -3),
        ("a=2_000_000", 2_000_000),
        ("a=1e6", 1e6),
        ("a=3e-4", 3e-4),
        ("a=.5", 0.5),
        ("a=true", True),
        ("a=False", False),
        ("a=null", None),
        ("a=mappo", "mappo"),
        ("a=20M", "20M"),
        ("a='3'", "3"),
        ('a="x, y"', "x, y"),
        (r"a='it\'s'", "it's"),
        ("a=[64,64]", [64, 64]),
        ("a=[]", []),
        ("a=[1, [2, x]]", [1, [2, "x"]]),
        ("a={b: 1, c: [2]}", {"b": 1, "c": [2]}),
        ("a=runs/x=1", "runs/x=1"),
        ("a=package.module:factory", "package.module:factory"),
    ],
)
def test_values_are_parsed_by_their_form(text: str, value: object):
    override = parse(text)
    assert override.values == (value,)
    assert type(override.values[0]) is type(value)
    assert not override.is_sweep


def test_commas_outside_of_lists_and_quotes_define_a_sweep():
    assert parse("a=1,2").values == (1, 2)
    assert parse("a=[1,2],[3]").values == ([1, 2], [3])
    assert parse("a=[1,2],[3]").texts == ("[1,2]", "[3]")
    assert parse("a='1,2'").values == ("1,2",)


def test_combinations_vary_the_last_sweep_fastest():
    found = combinations(parse_all(["seed=0,1", "steps=5", "algo=ippo,mappo"]))
    assert found[:2] == [["seed=0", "steps=5", "algo=ippo"], ["seed=0", "steps=5", "algo=mappo"]]
    assert len(found) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo", "expected key=value"),
        ("=3", "is not a key"),
        ("a b=3", "is not a key"),
        ("a..b=3", "is not a key"),
        ("a=", "the value is missing"),
        ("a= ", "the value is missing"),
        ("+a=3", "remove the '+'"),
        ("~a=3", "remove the '~'"),
        ("a=[1,2", "not closed"),
        ("a={b:1", "not closed"),
        ("a={b}", "expected ':'"),
        ("a='x", "not closed"),
        ("a=[1]2", "expected ','"),
        ("a=1,,2", "missing"),
        ("a=1,", "missing"),
    ],
)
def test_a_malformed_setting_raises_an_error_that_quotes_it(text: str, message: str):
    with pytest.raises(UserError) as error:
        parse(text)
    assert message in str(error.value)
    assert text in str(error.value)


def test_the_last_value_wins_even_if_the_key_is_abbreviated():
    for pair in (["seed=1", "seed=2"], ["algo=ippo", "algo.name=mappo"], ["teams.a.run=x", "teams.a.algo.run=y"]):
        assert [override.text for override in parse_all(["steps=1", *pair])] == ["steps=1", pair[1]]


def test_abbreviated_keys_are_expanded():
    assert canonical("algo") == "algo.name"
    assert canonical("teams.adversary.algo") == "teams.adversary.algo.name"
    assert canonical("teams.adversary.run") == "teams.adversary.algo.run"
    assert canonical("algo.lr") == "algo.lr"


# -------------------------------------------------------------------------------------------------------- hostile text

SETTING = b"""teams.row.algo.hidden_sizes=[64, {a: 1e-3, 'b c': "d\\"e"}, null, -2_000],1.5,text"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=" + "[" * 5000, "more than 50 nested lists and mappings. Write it flat"),
        ("a=" + "{b: " * 5000, "more than 50 nested lists and mappings"),
        ("a=" + "9" * 5000, r"the integer 9+\.\.\. has more than 64 bits\. Write a smaller one"),
        ("a=\x1b]0;x", r"'a=\\x1b\]0;x': contains the control character '\\x1b'\. Remove it"),
        ("a=\x00", "contains the control character"),
        ("a=\udcff", "contains the control character"),
        ("a" * 201 + "=1", "is not a key"),
        ("x" * 5000, "expected key=value"),
    ],
)
def test_a_hostile_setting_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        parse(text)
    assert_one_line(str(refusal.value))
    assert len(str(refusal.value)) < 400


@pytest.mark.slow
@FUZZ
@given(content=mutated(SETTING))
def test_mutated_settings_are_parsed_or_refused_in_one_line(content: bytes) -> None:
    try:
        parse_all([content.decode(errors="surrogateescape")])
    except UserError as error:
        assert_one_line(str(error))


@pytest.mark.slow
@settings(FUZZ, max_examples=100)  # a configuration takes much longer than parsing
@given(content=mutated(b"algo.hidden_sizes=[64,32]"), other=mutated(b"env.num_agents=3"))
def test_mutated_settings_are_resolved_or_refused_in_one_line(content: bytes, other: bytes) -> None:
    try:
        resolve([content.decode(errors="surrogateescape"), other.decode(errors="surrogateescape")])
    except UserError as error:
        assert_one_line(str(error))
