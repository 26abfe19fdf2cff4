"""Parser of `key=value` settings."""

from __future__ import annotations

import pytest

from coterie.config.overrides import canonical, combinations, parse, parse_all
from coterie.core.errors import UserError


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


def test_a_key_given_twice_is_refused_even_if_abbreviated():
    for pair in (["seed=1", "seed=2"], ["algo=ippo", "algo.name=mappo"], ["teams.a.run=x", "teams.a.algo.run=y"]):
        with pytest.raises(UserError, match="given twice"):
            parse_all(pair)


def test_abbreviated_keys_are_expanded():
    assert canonical("algo") == "algo.name"
    assert canonical("teams.adversary.algo") == "teams.adversary.algo.name"
    assert canonical("teams.adversary.run") == "teams.adversary.algo.run"
    assert canonical("algo.lr") == "algo.lr"
