"""Layers multiply in bfloat16; results, gradients, losses and parameters are float32."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.resolve import resolve
from coterie.core import precision
from coterie.core.errors import UserError
from coterie.kernels import switch
from coterie.nets.layers import Linear
from coterie.training.collector import Collector
from learners import collect_rollout
from preset_learners import policy_tensors, preset_learner


@pytest.fixture
def reduced():
    switch.configure("off")  # as configure_arithmetic does: the kernels compute in float32
    precision.configure("bfloat16")
    yield
    precision.configure("float32")
    switch.configure("auto")


def linear(sets):
    return Linear(3, 2, gain=1.0, generator=torch.Generator().manual_seed(0), sets=sets)


@pytest.mark.parametrize("sets", [None, 2])
def test_a_linear_layer_multiplies_rounded_numbers(reduced, sets):
    """1.005 is 1.0078125 in bfloat16, the next number below is 1."""
    layer = linear(sets)
    with torch.no_grad():
        layer.weight.fill_(1.005)
        layer.bias.fill_(0.5)
    x = torch.full((*([] if sets is None else [2]), 4, 3), 2.0, requires_grad=True)
    out = layer(x)
    assert out.dtype == torch.float32
    assert torch.equal(out, torch.full_like(out, 0.5 + 3 * 2 * 1.0078125).bfloat16().float())
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(x.grad, torch.full_like(x, 2 * 1.0078125).bfloat16().float())


def test_the_product_accumulates_in_float32(reduced):
    """512 products of 1 and 2^-8 are 2: a sum in bfloat16 would stay at 1, whose neighbor is 1 + 2^-7."""
    layer = Linear(512, 1, gain=1.0, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.weight.fill_(2.0**-8)
    assert layer(torch.ones(1, 512)).item() == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rnn"), [("ippo", "none"), ("mappo", "gru"), ("qmix", "gru"), ("masac", "lstm")])
def test_learners_train_with_float32_parameters(reduced, name, rnn):
    env = env_of(Everything(), 4)
    learner = preset_learner(name, env, rnn)
    collector = Collector(env, {env.spec.default_teams()[0].name: learner.behavior_policy}, seed=0)
    before = [x.clone() for x in policy_tensors(learner)]
    for update in range(2):
        metrics = learner.update(collect_rollout(learner, collector), update / 2)
    after = policy_tensors(learner)
    assert all(abs(value) < float("inf") for value in metrics.values())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    parameters = [x for network in learner.policy.networks for x in network.parameters()]
    assert {x.dtype for x in parameters} == {torch.float32}


@pytest.mark.slow
def test_metrics_are_near_those_of_float32(reduced):
    def metrics(setting):
        precision.configure(setting)
        try:
            env = env_of(Everything(), 8)
            learner = preset_learner("ippo", env, "none")
            collector = Collector(env, {env.spec.default_teams()[0].name: learner.behavior_policy}, seed=0)
            return learner.update(collect_rollout(learner, collector), 0.0)
        finally:
            precision.configure("float32")

    exact, rounded = metrics("float32"), metrics("bfloat16")
    assert exact != rounded
    assert rounded["policy/entropy"] == pytest.approx(exact["policy/entropy"], rel=0.01)
    assert rounded["loss/value"] == pytest.approx(exact["loss/value"], rel=0.1)


@pytest.mark.parametrize(("kernels", "described"), [("auto", "off"), ("off", "off")])
def test_kernels_are_off(reduced, kernels, described):
    config = resolve(["precision=bfloat16", f"kernels={kernels}", "device=cpu"]).config
    assert configure_arithmetic(config).describe() == described
    assert precision.reduced


def test_kernels_cannot_be_asked_for(reduced):
    config = resolve(["precision=bfloat16", "kernels=on", "device=cpu"]).config
    with pytest.raises(UserError, match=r"kernels=on: the kernels compute in float32, not in precision=bfloat16\."):
        configure_arithmetic(config)
