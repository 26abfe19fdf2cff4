"""Data of a gradient step of DDPG."""

from dataclasses import FrozenInstanceError, fields

import pytest

from coterie.algos.ddpg import Batch


def test_a_batch_cannot_be_changed():
    batch = Batch(**{field.name: None for field in fields(Batch)})
    with pytest.raises(FrozenInstanceError):
        batch.reward = None
