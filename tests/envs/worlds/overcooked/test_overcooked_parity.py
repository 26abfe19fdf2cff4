"""Kitchens equal the package `overcooked_ai`: its recorded episodes, from the package's states on.

`tests/helpers/overcooked_record.py` compares any number of further episodes where the package is.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from coterie.envs.worlds.overcooked import LAYOUTS
from overcookedplay import EVENTS, Episodes, compare, recorded


@pytest.mark.parametrize("old_dynamics", [True, False])
def test_recorded_episodes_equal_those_of_the_package_and_contain_every_event(old_dynamics: bool):
    events: Counter[str] = Counter()
    for layout in LAYOUTS:
        episodes = recorded(layout, old_dynamics)
        assert episodes.actions.shape == (5, 100, 2)
        found = compare(layout, old_dynamics, episodes)
        assert found["delivered"] > 0, layout
        events.update(found)
    wanted = EVENTS if old_dynamics else (*EVENTS, "delivered_wrong", "cooked_by_hand")
    assert [name for name in wanted if not events[name]] == []


@pytest.mark.parametrize("part", Episodes._fields)
def test_the_comparison_finds_a_difference_in_each_part(part: str):
    episodes = recorded("cramped_room", True)
    changed = getattr(episodes, part).copy()
    at = np.unravel_index(np.flatnonzero(episodes.states[:, :-1, 4] == 1)[0], episodes.states[:, :-1, 4].shape)
    changed[at] = changed[at] ^ 1  # an agent holds an onion there
    with pytest.raises((AssertionError, IndexError)):
        compare("cramped_room", True, episodes._replace(**{part: changed}))
