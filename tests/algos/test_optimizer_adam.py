"""Optimizer: the steps of torch.optim.Adam and RAdam, bit by bit, without what these classes import."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.algos.optimizer import Optimizer
from coterie.kernels import switch
from fakecuda import fake_cuda

EPS, DECAY, MAX_NORM = 1e-5, 0.01, 0.5


def modules() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"one": nn.Linear(7, 5), "two": nn.Linear(5, 3)}


def losses(nets: dict[str, nn.Module], count: int) -> list[Tensor]:
    x = torch.randn(count, 11, 7, generator=torch.Generator().manual_seed(1))
    return [nets["two"](nets["one"](batch).tanh()).square().sum() for batch in x]


def rates(k: int) -> dict[str, float]:
    return {"one": 1e-3, "two": 2e-3 / (k + 1)}


def parameters(nets: dict[str, nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in nets.values() for parameter in module.parameters()]


def assert_same_parameters(nets: dict[str, nn.Module], others: dict[str, nn.Module]) -> None:
    for one, other in zip(parameters(nets), parameters(others), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def without_kernels():
    switch.configure("off")  # their sums are in another order
    yield
    switch.configure("auto")


@pytest.mark.slow
def test_steps_are_those_of_adam_with_clipped_gradients(without_kernels):
    nets, others = modules(), modules()
    optimizer = Optimizer(nets, EPS, DECAY, MAX_NORM)
    flat = {name: nn.utils.parameters_to_vector(module.parameters()).detach() for name, module in others.items()}
    adam = torch.optim.Adam(
        [{"params": [vector], "name": name} for name, vector in flat.items()],
        lr=0.0,
        eps=EPS,
        weight_decay=DECAY,
        fused=True,
    )
    for k in range(20):
        norms = optimizer.step(losses(nets, k + 1)[k], rates(k))
        losses(others, k + 1)[k].backward()
        for (name, vector), norm in zip(flat.items(), norms, strict=True):
            found = torch.cat([p.grad.reshape(-1) for p in others[name].parameters()])
            assert norm == found.norm()
            vector.grad = found * (MAX_NORM / (found.norm() + 1e-6)).clamp(max=1.0)
        for group in adam.param_groups:
            group["lr"] = rates(k)[group["name"]]
        adam.step()
        for name, module in others.items():
            nn.utils.vector_to_parameters(flat[name], module.parameters())
            module.zero_grad()
        assert_same_parameters(nets, others)
    assert (norms > MAX_NORM).any(), "nothing was clipped"


@pytest.mark.parametrize("kernels", ["off", "on"])
def test_steps_are_those_of_radam_with_clipped_gradients(kernels):
    """The first five of them descend along the momentum alone. The fused kernel sums in another order."""
    nets, others = modules(), modules()
    optimizer = Optimizer(nets, EPS, DECAY, MAX_NORM, None, "radam")
    radam = torch.optim.RAdam([{"params": [*others[name].parameters()], "lr": rates(1)[name]} for name in others],
                              eps=EPS, weight_decay=DECAY)  # fmt: skip
    plain = modules()
    adam = Optimizer(plain, EPS, DECAY, MAX_NORM)
    switch.configure(kernels)
    try:
        for k in range(20):
            optimizer.step(losses(nets, k + 1)[k], rates(1))
            adam.step(losses(plain, k + 1)[k], rates(1))
            radam.zero_grad()
            losses(others, k + 1)[k].backward()
            for module in others.values():
                nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)
            radam.step()
            for one, other, control in zip(*map(parameters, (nets, others, plain)), strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
                assert not torch.allclose(one, control, atol=1e-6, rtol=1e-5)
    finally:
        switch.configure("auto")


def test_a_restored_optimizer_takes_the_same_steps():
    nets = modules()
    optimizer = Optimizer(nets, EPS, DECAY, MAX_NORM)
    assert optimizer.state_dict() == {"one": {}, "two": {}}  # before the first step there are no moments
    for k in range(3):
        optimizer.step(losses(nets, k + 1)[k], rates(k))
    others = copy.deepcopy(nets)
    other = Optimizer(others, EPS, DECAY, MAX_NORM)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for k in range(3, 6):
        optimizer.step(losses(nets, k + 1)[k], rates(k))
        other.step(losses(others, k + 1)[k], rates(k))
    assert_same_parameters(nets, others)
    fresh = Optimizer(others, EPS, DECAY, MAX_NORM)
    fresh.step(losses(others, 1)[0], rates(0))  # negative control: without the moments, the steps differ
    optimizer.step(losses(nets, 1)[0], rates(0))
    assert any(not torch.equal(one, two) for one, two in zip(parameters(nets), parameters(others), strict=True))


def test_an_optimizer_for_one_module_has_moments_and_a_weight_decay_of_its_own():
    nets = modules()
    optimizer = Optimizer(nets, EPS, DECAY, MAX_NORM)
    optimizer.step(losses(nets, 1)[0], rates(0))
    before = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy({"two": nets["two"]})
    alone = optimizer.for_module("one")
    assert alone.state_dict() == {"one": {}}
    alone.step(losses(nets, 1)[0] * 0.0, {"one": 1.0})
    assert tuple(alone.flat) == ("one",)
    assert alone.state_dict()["one"]["exp_avg"].count_nonzero() == 0, "weight decay would add to the gradient of 0"
    assert torch.equal(before["one"]["exp_avg"], optimizer.state_dict()["one"]["exp_avg"])
    assert_same_parameters({"two": nets["two"]}, kept)


@pytest.mark.parametrize("as_tensors", [False, True])
def test_steps_on_a_gpu_are_those_on_the_cpu_and_read_nothing(without_kernels, as_tensors):
    """Rates as tensors are read by the step itself, so that it follows them without a new capture."""
    nets, others = modules(), modules()
    on_host = Optimizer(nets, EPS, DECAY, MAX_NORM)
    before = losses(nets, 3)[0].detach()
    for k in range(3):
        on_host.step(losses(nets, 3)[k], rates(k))
    with fake_cuda() as cuda:
        for module in others.values():
            module.to("cuda")
        optimizer = Optimizer(others, EPS, DECAY, MAX_NORM)
        x = torch.randn(3, 11, 7, generator=torch.Generator().manual_seed(1)).to("cuda")
        lr = {name: torch.zeros((), device="cuda") for name in others}
        kept = optimizer.tensors()
        cuda.reads.clear()
        cuda.copies.clear()
        for k in range(3):
            for name, rate in rates(k).items():
                lr[name].fill_(rate)
            loss = others["two"](others["one"](x[k]).tanh()).square().sum()
            optimizer.step(loss, lr if as_tensors else rates(k))
        assert (cuda.reads, cuda.copies) == ({}, {})
        assert all(x is y for x, y in zip(kept, optimizer.tensors(), strict=True))
        found = [p.detach().cpu() for p in parameters(others)]
        loss = losses(nets, 3)[0].detach()
    assert loss < before
    for one, other in zip(parameters(nets), found, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-6, atol=1e-7)


def test_steps_on_a_gpu_do_not_depend_on_how_a_rate_is_given(without_kernels):
    """With 0.3 in double precision, which no float32 equals, steps would differ slightly from those in a graph."""

    def trained(as_tensor: bool) -> Tensor:
        nets = modules()
        with fake_cuda():
            for module in nets.values():
                module.to("cuda")
            optimizer = Optimizer(nets, EPS, DECAY, None)
            x = torch.randn(4, 11, 7, generator=torch.Generator().manual_seed(1)).to("cuda")
            rate = torch.full((), 0.3, device="cuda") if as_tensor else 0.3
            for batch in x:
                optimizer.step(nets["two"](nets["one"](batch)).square().sum(), dict.fromkeys(nets, rate))
            return torch.cat([p.detach().cpu().flatten() for p in parameters(nets)])

    assert torch.equal(trained(False), trained(True))
