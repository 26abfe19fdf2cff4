"""The fake CUDA device finds what it is for, and nothing else."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.core.seeds import generator
from coterie.training.collector import Collector
from fakecuda import CUDA, FakeCudaTensor, MixedDevicesError, fake_cuda
from learners import collect_rollout
from preset_learners import preset_learner

HERE = "outside of Coterie"


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "branch": lambda x: bool((x > 0).all()),
    "list": lambda x: x.tolist(),
    "host": lambda x: x.cpu(),
    "moved": lambda x: x.to("cpu"),
    "copied": lambda x: torch.zeros(2, 3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask_of_rows": lambda x: x.__setitem__(x[:, 0] > 0, x[:1].clone()),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.sum()),
    "index_fill": lambda x: x.index_fill(0, torch.zeros(1, dtype=torch.int64, device=CUDA), x.sum()),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_by_the_host_is_counted(cuda, name):
    x = torch.ones(2, 3, device=CUDA)
    READS[name](x)
    assert cuda.reads == {HERE: 1}


COPIES = {
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=CUDA),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "to": lambda x: torch.zeros(3).to(x),
    "cuda": lambda x: torch.zeros(3).cuda(),
    "copy": lambda x: x.copy_(torch.zeros(3)),
    "index": lambda x: x[:, [0, 2]],
    "element": lambda x: x[0, 0].fill_(0).copy_(torch.zeros(())),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(())),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_from_the_host_is_counted(cuda, name):
    x = torch.ones(2, 3, device=CUDA)
    COPIES[name](x)
    assert (cuda.copies, cuda.reads) == ({HERE: 1}, {})


MIXED = {
    "sum": lambda x: x + torch.ones(3),
    "assignment": lambda x: x.add_(torch.ones(3)),
    "cat": lambda x: torch.cat([x, torch.ones(1, 3)]),
    "stack": lambda x: torch.stack([x.sum(), torch.zeros(())]),
    "matmul": lambda x: x @ torch.ones(3, 2),
    "where": lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, 0.0),
    "gather": lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
    "index_of_host": lambda x: torch.ones(3)[x.long()[0]],
    "linear": lambda x: torch.nn.Linear(3, 2)(x),
    "generator": lambda x: torch.rand(3, device=CUDA, generator=generator(0, "a")),
    "generator_of_host": lambda x: torch.rand(3, generator=generator(0, "b", device=CUDA)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_raise(cuda, name):
    with pytest.raises(MixedDevicesError):
        MIXED[name](torch.ones(2, 3, device=CUDA))


def test_numpy_raises(cuda):
    with pytest.raises(TypeError, match="cuda:0 device type tensor"):
        torch.ones(2, device=CUDA).numpy()


ALLOWED = {
    "scalar": lambda x: x * torch.tensor(2.0) + 1.0,
    "fill": lambda x: x.__setitem__(slice(0, 1), 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "mask": lambda x: x.__setitem__(x > 0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long(), 4),
    "clone": lambda x: x.clone(),
    "same_device": lambda x: x.to(CUDA, torch.float64),
    "random": lambda x: torch.randperm(3, device=CUDA, generator=generator(0, "c", device=CUDA)),
    "gradient": lambda x: (
        (x.requires_grad_().index_select(0, torch.zeros(1, dtype=torch.int64, device=CUDA)) ** 2).sum().backward()
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_other_operations_are_neither_counted_nor_refused(cuda, name):
    x = torch.ones(2, 3, device=CUDA)
    ALLOWED[name](x)
    assert (cuda.reads, cuda.copies) == ({}, {})
    assert isinstance(x, FakeCudaTensor)
    assert x.is_cuda


def test_values_and_gradients_are_those_of_the_cpu(cuda):
    def train(device):
        draw = torch.Generator().manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        for p in net.parameters():
            torch.nn.init.normal_(p, generator=draw)
        net = net.to(device)
        x = torch.linspace(-1, 1, 15).view(5, 3).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    assert all(torch.equal(x, y) for x, y in zip(train("cpu"), train(CUDA), strict=True))


def flawed_learner(monkeypatch, flaw):
    """Returns a PPO learner on the fake device whose loss has a flaw, and its next rollout."""
    env = env_of(Everything(), 4, device=CUDA)
    learner = preset_learner("ippo", env, "none")
    correct = learner.loss_terms

    def loss_terms(log_prob, entropy, value, batch):
        flaw(batch)
        return correct(log_prob, entropy, value, batch)

    monkeypatch.setattr(learner, "loss_terms", loss_terms)
    return learner, collect_rollout(
        learner, Collector(env, {env.spec.default_teams()[0].name: learner.behavior_policy}, 0)
    )


def test_a_learner_that_reads_in_every_minibatch_is_found(cuda, monkeypatch):
    learner, rollout = flawed_learner(monkeypatch, lambda batch: batch.advantage.mean().item())
    cuda.reads.clear()
    learner.update(rollout, 0.0)
    assert cuda.reads == {
        "algos/clipped_learner:acted_candidates": 1,
        "algos/ppo:_step": 8,  # 2 passes over 4 minibatches
        "algos/optimizer:mean_metrics": 1,
    }


def test_a_learner_that_mixes_devices_is_found(cuda, monkeypatch):
    learner, rollout = flawed_learner(monkeypatch, lambda batch: batch.advantage * torch.ones(batch.advantage.shape))
    with pytest.raises(MixedDevicesError):
        learner.update(rollout, 0.0)
