"""The grammar of key=value."""

from __future__ import annotations

import pytest

from coterie.errors import UserError
from coterie.overrides import canonical, combinations, parse, parse_all


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
def test_a_value_means_what_it_looks_like(text: str, value: object):
    override = parse(text)
    assert override.values == (value,)
    assert type(override.values[0]) is type(value)
    assert not override.is_sweep


def test_commas_make_a_sweep_only_outside_of_lists_and_quotes():
    assert parse("a=1,2").values == (1, 2)
    assert parse("a=[1,2],[3]").values == ([1, 2], [3])
    assert parse("a=[1,2],[3]").texts == ("[1,2]", "[3]")
    assert parse("a='1,2'").values == ("1,2",)


def test_combinations_vary_the_last_sweep_fastest():
    found = combinations(parse_all(["seed=0,1", "steps=5", "algo=ippo,mappo"]))
    assert found[:2] == [["seed=0", "steps=5", "algo=ippo"], ["seed=0", "steps=5", "algo=mappo"]]
    assert len(found) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algo", "write key=value"),
        ("=3", "is no key"),
        ("a b=3", "is no key"),
        ("a..b=3", "is no key"),
        ("a=", "has no value"),
        ("a= ", "has no value"),
        ("+a=3", "leave out the '+'"),
        ("~a=3", "leave out the '~'"),
        ("a=[1,2", "not closed"),
        ("a={b:1", "not closed"),
        ("a={b}", "expected ':'"),
        ("a='x", "not closed"),
        ("a=[1]2", "expected ','"),
        ("a=1,,2", "missing"),
        ("a=1,", "missing"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, words: str):
    with pytest.raises(UserError) as error:
        parse(text)
    assert words in str(error.value)
    assert text in str(error.value)


def test_a_key_given_twice_is_refused_however_it_is_written():
    for pair in (["seed=1", "seed=2"], ["algo=ippo", "algo.name=mappo"], ["teams.a.run=x", "teams.a.algo.run=y"]):
        with pytest.raises(UserError, match="given twice"):
            parse_all(pair)


def test_short_keys_stand_for_the_value_itself():
    assert canonical("algo") == "algo.name"
    assert canonical("teams.adversary.algo") == "teams.adversary.algo.name"
    assert canonical("teams.adversary.run") == "teams.adversary.algo.run"
    assert canonical("algo.lr") == "algo.lr"
