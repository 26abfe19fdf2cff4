"""Discrete choices: values of chosen and best actions."""

import torch

from coterie.math.choices import best, taken

Q = torch.tensor([[1.0, 3.0, 2.0, 5.0, 0.5]])


def test_value_of_one_component_is_its_entry():
    assert taken(Q, torch.tensor([[3]]), (5,)).tolist() == [5.0]
    index, value = best(Q, None, (5,))
    assert index.tolist() == [[3]]
    assert value.tolist() == [5.0]


def test_values_of_components_are_summed():
    assert taken(Q, torch.tensor([[1, 0]]), (3, 2)).tolist() == [8.0]
    index, value = best(Q, None, (3, 2))
    assert index.tolist() == [[1, 0]]
    assert value.tolist() == [8.0]


def test_masked_choices_are_never_the_best():
    mask = torch.tensor([[True, False, True, False, True]])
    index, value = best(Q, mask, (3, 2))
    assert index.tolist() == [[2, 1]]
    assert value.tolist() == [2.5]


def test_double_q_evaluates_the_choice_of_the_online_network():
    online, target = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([5.0, 0.5, 4.0])
    assert taken(target, best(online, None, (3,))[0], (3,)).item() == 0.5
    mask = torch.tensor([True, False, True])
    assert taken(target, best(online, mask, (3,))[0], (3,)).item() == 4.0
