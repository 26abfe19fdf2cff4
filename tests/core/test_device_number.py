"""A number that captured functions read: a tensor on a GPU, with the results of a Python number."""

import threading

import pytest
import torch

from coterie.core.device_number import DeviceNumber, as_tensors
from fakecuda import CUDA, fake_cuda

VALUES = (0.3, 1 / 3, 0.05, 1.0)


def test_it_is_a_python_number_on_the_cpu():
    number = DeviceNumber(0.3, torch.device("cpu"))
    number.value = 0.1
    assert (number.value, number.operand) == (0.1, 0.1)


def test_a_trace_in_another_thread_changes_nothing():
    """Threads that enter and leave in turns once left the setting on."""
    number, entered, left = DeviceNumber(0.3, torch.device("cpu")), threading.Event(), threading.Event()

    def trace():
        with as_tensors():
            entered.set()
            left.wait()

    other = threading.Thread(target=trace)
    with as_tensors():
        other.start()
        entered.wait()
        assert isinstance(number.operand, torch.Tensor)
    assert number.operand == 0.3
    assert isinstance(number.operand, float)
    left.set()
    other.join()
    assert isinstance(number.operand, float)


def test_it_is_changed_in_place_on_a_gpu_without_transfers():
    with fake_cuda() as cuda:
        number = DeviceNumber(0.3, torch.device(CUDA))
        operand = number.operand
        assert isinstance(operand, torch.Tensor)
        number.value = 0.1
        assert number.operand is operand
        assert (cuda.reads, cuda.copies) == ({}, {})
        assert operand.item() == number.value == 0.1


OPERATIONS = {
    "product": lambda x, number: x * number,
    "difference": lambda x, number: (1 - number) * x,
    "quotient": lambda x, number: x + number / 3,
    "in place": lambda x, number: x.clone().mul_(1 - number).add_(number / 7),
    "share of a count": lambda x, number: (x > 0).sum(-1, keepdim=True).reciprocal() * number + x,
    "comparison": lambda x, number: x < number,
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_of_a_python_number(name, value):
    x = torch.cat([torch.rand(64, 5, generator=torch.Generator().manual_seed(0)), torch.full((1, 5), value)])
    expected = OPERATIONS[name](x, value)
    with fake_cuda():
        found = OPERATIONS[name](x.to(CUDA), DeviceNumber(value, torch.device(CUDA)).operand).cpu()
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
