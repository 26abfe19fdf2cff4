"""Discrete choices: values of chosen and best actions."""

import pytest
import torch

from coterie.functional.choices import best, taken

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


@pytest.mark.parametrize("choices", [(5,), (3, 2), (1, 3, 1)])
def test_values_of_a_batch_are_those_of_its_entries(choices):
    """Three environments of two agents; the number of environments equals a component's number of choices."""
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(3, 2, 5, generator=draw)
    action = torch.stack([torch.randint(n, (3, 2), generator=draw) for n in choices], -1)
    value, (index, top) = taken(q, action, choices), best(q, None, choices)
    assert (index.shape, value.shape, top.shape) == ((3, 2, len(choices)), (3, 2), (3, 2))
    for i, j in ((i, j) for i in range(3) for j in range(2)):
        parts = [part.tolist() for part in q[i, j].split(choices)]
        chosen = zip(parts, action[i, j].tolist(), strict=True)
        assert value[i, j].item() == pytest.approx(sum(part[a] for part, a in chosen), abs=1e-6)
        assert index[i, j].tolist() == [part.index(max(part)) for part in parts]
        assert top[i, j].item() == pytest.approx(sum(map(max, parts)), abs=1e-6)


def test_an_action_with_too_few_components_is_rejected():
    with pytest.raises(ValueError, match="zip"):
        taken(Q, torch.tensor([[1]]), (3, 2))
