import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from coterie.core.device_constants import DeviceConstant, DeviceNumber, as_tensors, constant
from fakecuda import CUDA, fake_cuda


def test_a_constant_is_made_once_per_device_and_type():
    cpu = torch.device("cpu")
    made = constant(((1, 2), (3, 4)), cpu, torch.float32)
    assert made.tolist() == [[1, 2], [3, 4]]
    assert made.dtype == torch.float32
    assert constant(((1, 2), (3, 4)), cpu, torch.float32) is made
    assert constant(((1, 2), (3, 4)), cpu, torch.int64).dtype == torch.int64


def test_a_constant_is_copied_to_a_device_once():
    with fake_cuda() as cuda:
        indices, device = DeviceConstant(torch.tensor([2, 0])), torch.zeros(1, device=CUDA).device
        for _ in range(2):
            assert indices.on(device).tolist() == [2, 0]
            assert constant((5, 7), device, torch.int64).tolist() == [5, 7]
        assert sum(cuda.copies.values()) == 2
    assert indices.on(torch.device("cpu")) is indices.tensor


def test_a_constant_that_was_first_used_in_acting_can_be_used_in_training():
    with torch.inference_mode():
        factor = constant((3.0, 5.0), torch.device("cpu"), torch.float64)
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (x * factor).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 5]


def test_a_constant_that_was_first_used_in_an_export_has_values_afterwards():
    """Exports trace with tensors without values, which acting in the same process must not get."""
    cpu, held = torch.device("cpu"), DeviceConstant(torch.tensor([4, 1]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert constant(range(3, 29, 7), cpu, torch.int64).shape == (4,)
        assert held.on(torch.device("meta")).shape == (2,)
    assert constant(range(3, 29, 7), cpu, torch.int64).tolist() == [3, 10, 17, 24]
    assert type(held.on(torch.device("meta"))) is torch.Tensor


VALUES = (0.3, 1 / 3)


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
