"""Observations that carry their action mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.commands.masked_observations import split_masks
from coterie.core.errors import UserError
from tinyruns import train


def test_a_player_takes_observations_with_masks(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "env=matrix/climbing", "algo=ippo").run
    loaded = coterie.load(run)
    agents = [agent for team in loaded.teams.values() for agent in team.agents]
    sizes = {
        r.agents[0]: (r.observation_space.shape, r.action.mask_size) for t in loaded.teams.values() for r in t.roles
    }
    shape, choices = next(iter(sizes.values()))
    for allowed in range(choices):
        mask = np.arange(choices) == allowed
        given = {agent: {"observation": np.zeros(shape), "action_mask": mask} for agent in agents}
        assert loaded.player(seed=0).act(given) == dict.fromkeys(agents, allowed)
        separate = loaded.player(seed=0).act({agent: np.zeros(shape) for agent in agents}, dict.fromkeys(agents, mask))
        assert separate == dict.fromkeys(agents, allowed)
    some = {agents[0]: {"observation": np.zeros(shape), "action_mask": mask}, agents[1]: np.zeros(shape)}
    assert loaded.player(seed=0).act(some)[agents[0]] == choices - 1


def test_masks_are_split_from_observations() -> None:
    obs, mask = np.zeros(2), np.ones(3, bool)
    assert split_masks(obs, None) == (obs, None) or split_masks(obs, None)[0] is obs
    arrays, masks = split_masks({"a": {"observation": obs, "action_mask": mask}, "b": obs}, None)
    assert arrays["a"] is obs  # type: ignore[index, call-overload]
    assert arrays["b"] is obs  # type: ignore[index, call-overload]
    assert masks == {"a": mask} or masks["a"] is mask  # type: ignore[index]
    alone, own = split_masks({"observation": obs, "action_mask": mask}, None)
    assert alone is obs
    assert own is mask
    assert split_masks({"a": {"observation": obs}}, None)[1] is None


@pytest.mark.parametrize(
    ("obs", "mask", "message"),
    [
        ({"a": {"observation": 1, "action_mask": 2}}, {"a": 3}, "action_mask of 'a': given twice"),
        ({"observation": 1, "action_mask": 2}, 3, "action_mask: given twice"),
        ({"a": {"obs": 1}}, None, "obs of 'a': a dict with obs. Pass an array, or a dict with observation"),
        ({"a": {"observation": 1, "action_mask": 2}}, np.ones(2), "action_mask: one array, but the observations"),
    ],
)
def test_mistakes_are_one_line(obs: dict, mask: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_masks(obs, mask)  # type: ignore[arg-type]
