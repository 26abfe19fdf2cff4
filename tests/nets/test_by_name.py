"""Modules and parameters by any texts."""

import itertools

import pytest
import torch
from torch import nn

from coterie.nets.by_name import ModulesByName, ParametersByName, key_of, name_of

HOSTILE = ("items", "keys", "values", "train", "type", "update", "to", "cpu", "pop", "clear", "forward", "training")
HOSTILE += ("state_dict", "T_destination", "_modules", "__class__", "", ".", "a.b", "a%2Eb", "a%252Eb", "items%", "%")
HOSTILE += (
    "%%",
    "50%",
    "100%25",
    "a/b",
    "a b",
    " a",
    "ä☃",
    "'\"",
    "weight",
    "0",
    "a.b.weight",
    "..",
    "a\nb",
    "a%0Ab",
    "\\",
    "\x1b",
    "x" * 500,
)
PLAIN = ("agent", "agent_0", "left wing", "Red-1", "a/b", "ä", "50% off")


def test_ordinary_names_are_their_keys():
    assert [key_of(name) for name in PLAIN] == list(PLAIN)


def test_different_names_have_different_keys_that_pytorch_accepts():
    names = (*HOSTILE, *PLAIN)
    assert len({key_of(name) for name in names}) == len(set(names))
    assert [name_of(key_of(name)) for name in names] == list(names)
    nn.ModuleDict({key_of(name): nn.Identity() for name in names})


def test_names_of_marks_are_distinct():
    parts = ("%", "2E", "25", "0A", ".", "\n", "items")
    names = {"".join(name) for size in range(5) for name in itertools.product(parts, repeat=size)}
    assert len({key_of(name) for name in names}) == len(names)
    assert all(name_of(key_of(name)) == name for name in names)


@pytest.mark.parametrize("kind", [ModulesByName, ParametersByName])
def test_entries_are_found_by_their_names(kind):
    make = (lambda: nn.Linear(1, 1)) if kind is ModulesByName else (lambda: nn.Parameter(torch.ones(1)))
    entries = {name: make() for name in HOSTILE}
    found = kind()
    for name, entry in entries.items():
        found[name] = entry
    assert list(found) == list(found.keys()) == list(HOSTILE)
    assert all(found[name] is entry and name in found for name, entry in entries.items())
    assert [(name, id(entry)) for name, entry in found.items()] == [(name, id(x)) for name, x in entries.items()]
    assert "other" not in found
    assert len(found) == len(HOSTILE)
    copy = kind({name: make() for name in HOSTILE})
    assert set(copy) == set(HOSTILE)
    copy.load_state_dict(found.state_dict())
    assert all(a.equal(b) for a, b in zip(copy.state_dict().values(), found.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", ["a\nb", "'", '"', "\\", "\r", "\x00", "\x85", "\x1b"])
def test_keys_can_be_texts_in_the_code_that_the_exporter_writes(name):
    key = key_of(name)
    assert key.isprintable()
    assert eval(f"'{key}'") == eval(f'"{key}"') == key
