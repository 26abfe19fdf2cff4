"""Action values by choice."""

import torch

from coterie.math.choices import best, taken

Q = torch.tensor([[1.0, 3.0, 2.0, 5.0, 0.5]])


def test_one_component_is_a_lookup():
    assert taken(Q, torch.tensor([[3]]), (5,)).tolist() == [5.0]
    pick, value = best(Q, None, (5,))
    assert pick.tolist() == [[3]]
    assert value.tolist() == [5.0]


def test_components_are_worth_their_sum():
    assert taken(Q, torch.tensor([[1, 0]]), (3, 2)).tolist() == [8.0]
    pick, value = best(Q, None, (3, 2))
    assert pick.tolist() == [[1, 0]]
    assert value.tolist() == [8.0]


def test_what_is_masked_is_never_the_best():
    mask = torch.tensor([[True, False, True, False, True]])
    pick, value = best(Q, mask, (3, 2))
    assert pick.tolist() == [[2, 1]]
    assert value.tolist() == [2.5]


def test_double_q_values_what_the_online_network_picks():
    online, target = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([5.0, 0.5, 4.0])
    assert taken(target, best(online, None, (3,))[0], (3,)).item() == 0.5
    mask = torch.tensor([True, False, True])
    assert taken(target, best(online, mask, (3,))[0], (3,)).item() == 4.0
