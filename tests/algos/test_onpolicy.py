"""What a window says: where episodes begin for a critic that reads the whole team."""

from types import SimpleNamespace

import pytest
import torch

from coterie.algos import onpolicy


def rows(alive, first, acted):
    """The flags of rows of one copy, T + 1 of them."""
    as_rows = torch.tensor(alive, dtype=torch.bool).unsqueeze(1), torch.tensor(first, dtype=torch.bool).unsqueeze(1)
    return SimpleNamespace(alive=as_rows[0], first=as_rows[1], acted=torch.tensor(acted, dtype=torch.bool).view(-1, 1))


def test_a_sole_newcomer_is_no_begin_of_the_teams_episode():
    """The last of the others leaves in the row in which it enters; the team's memory goes on."""
    window = rows([[1, 0], [1, 0], [0, 1], [0, 1]], [[1, 0], [0, 0], [0, 1], [0, 0]], [1, 1, 1, 1])
    assert onpolicy.begins(window, True).flatten().tolist() == [True, False, False, False]
    assert onpolicy.begins(window, False).squeeze(1).tolist() == window.first.squeeze(1).tolist()


def test_an_episode_begins_behind_a_closing_row_whoever_is_there():
    window = rows([[1, 1], [1, 0], [1, 1], [0, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]], [1, 0, 0, 1])
    assert onpolicy.begins(window, True).flatten().tolist() == [False, False, True, True]


@pytest.mark.parametrize(("there", "sizes"), [(16, [2] * 7 + [1] * 2), (18, [2] * 9), (9, [1] * 9), (4, [1] * 4)])
def test_what_is_dealt_out_makes_as_many_parts_as_asked_and_none_is_empty(there, sizes):
    """Chunks of equal size would make eight parts of sixteen where nine are asked for."""
    batch, shuffle = {"x": torch.arange(float(there))}, torch.Generator().manual_seed(0)
    parts = [part["x"] for part, _ in onpolicy.minibatches(batch, None, torch.arange(there), 9, shuffle)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(there))
    dealt = [part for part in onpolicy.deal(there, 9, None, shuffle) if part is not None]
    assert [len(part) for part in dealt] == sizes
