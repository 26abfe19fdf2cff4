import pytest
import torch

from coterie.training.episodes import true_indices
from fakecuda import CUDA, fake_cuda

MASKS = ([True, False, False, True, True], [False, False], [True, True, True], [])


@pytest.mark.parametrize("mask", MASKS)
def test_indices_of_true_entries_are_ascending(mask):
    expected = [i for i, value in enumerate(mask) if value]
    found = true_indices(torch.tensor(mask, dtype=torch.bool), len(expected))
    assert (found.tolist(), found.dtype) == (expected, torch.int64)


@pytest.mark.parametrize("mask", MASKS)
def test_a_gpu_computes_them_without_a_read(mask):
    expected = [i for i, value in enumerate(mask) if value]
    with fake_cuda() as cuda:
        found = true_indices(torch.tensor(mask, dtype=torch.bool, device=CUDA), len(expected))
        assert cuda.reads == {}
        assert (found.tolist(), found.dtype) == (expected, torch.int64)
