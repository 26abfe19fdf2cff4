"""Every operator is registered completely: with its schema, gradient, shapes, and for tracing."""

import importlib
import pkgutil

import pytest
import torch
from torch.utils._pytree import tree_map

import coterie.kernels
from coterie.kernels import policy_gradient, recurrent
from coterie.kernels.adam import adam_step
from coterie.kernels.attention import Projections, attend, attention
from coterie.kernels.mixing import qmix
from coterie.kernels.mlp import mlp
from coterie.nets.mixers import QMIXMixer
from operators import calls, failures

MASK = torch.tensor([[True, False, True, True, True]] * 6)
FIRST = torch.tensor([[True, False, True, False], [False] * 4, [False, True, False, False]])


def tensor(*shape):
    draw = torch.Generator().manual_seed(len(shape) + sum(shape))
    return (0.5 * torch.randn(*shape, generator=draw)).requires_grad_()


def _mlp():
    norms = [(tensor(18), tensor(18)), (tensor(64), tensor(64))]
    return mlp(tensor(10, 18), [tensor(18, 64), tensor(64, 5)], [tensor(64), tensor(5)], norms=norms, activated=1)


def _gru():
    return recurrent.gru(tensor(3, 4, 2), FIRST, tensor(4, 16), (tensor(2, 48), tensor(16, 48)), tensor(48), tensor(16))


def _lstm():
    states = (tensor(4, 16), tensor(4, 16))
    return recurrent.lstm(tensor(3, 4, 2), FIRST, states, (tensor(2, 64), tensor(16, 64)), tensor(64))


def _attention():
    parameters = Projections(tensor(32, 96), tensor(96), tensor(32, 32), tensor(32))
    return attention(tensor(5, 3, 32), torch.rand(5, 3) < 0.7, torch.tensor([[0, 1], [2, 1]]), parameters, 2)


def _attend():
    return attend(tensor(5, 2, 32), tensor(5, 3, 32), tensor(5, 3, 32), torch.rand(5, 2, 3) < 0.7, 2)


def _qmix():
    net = QMIXMixer(3, 6, 8, 16, generator=torch.Generator().manual_seed(0))
    return qmix(tensor(10, 3), tensor(10, 6), (net.hidden, net.first, net.second, net.direct, net.value))


def _categorical():
    logits = tensor(6, 5)
    with torch.no_grad():
        assert policy_gradient.sample_categorical(logits.detach(), MASK, tensor(6, 5).detach(), (2, 3)) is not None
    return policy_gradient.categorical(logits, MASK, torch.tensor([[0, 2]] * 6), (2, 3))


def _losses():
    policy = policy_gradient.clipped_policy_loss(
        tensor(10), tensor(10, 1)[:, 0].detach(), tensor(10).detach(), None, 0.2
    )
    rest = [tensor(10, size).detach()[:, :1] for size in (1, 2)]
    value = policy_gradient.clipped_value_loss(tensor(10, 1), *rest, None, clip_eps=0.2, huber_delta=1.0)
    return *policy, value


def _adam():
    with torch.no_grad():
        state = {"step": torch.zeros(()), "exp_avg": torch.zeros(5), "exp_avg_sq": torch.zeros(5)}
        rate = torch.full((), 0.01, dtype=torch.float64)
        adam_step(tensor(5).detach(), tensor(5).detach(), state, 0.5, lr=rate, weight_decay=0.0, eps=1e-5)
    return ()


def work():
    """Calls every operator, with backward passes."""
    parts = (_mlp(), _attention(), _attend(), _gru(), *_lstm(), _qmix(), *_categorical(), *_losses(), *_adam())
    sum(x.sum() for x in parts if x.requires_grad).backward()


def without_gradient(arguments):
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, arguments)


CALLS = calls("coterie", work)


def test_every_operator_is_called():
    for module in pkgutil.iter_modules(coterie.kernels.__path__):
        importlib.import_module(f"coterie.kernels.{module.name}")
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("coterie::")}
    assert {operator.name() for operator in CALLS} == names
    assert len(names) >= 18


@pytest.mark.parametrize("operator", CALLS, ids=lambda operator: operator.name())
def test_an_operator_is_registered_completely(operator):
    for arguments in CALLS[operator]:
        once = operator.name().endswith("_backward")  # their results have no gradient
        assert failures(operator, *(without_gradient(arguments) if once else arguments)) == {}


def test_gradients_are_part_of_the_checks():
    with_gradient = {
        operator.name().partition("::")[2]
        for operator, found in CALLS.items()
        for arguments in found
        if any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments)
    }
    differentiable = {
        "mlp",
        "attention",
        "attend",
        "gru",
        "lstm",
        "qmix",
        "categorical",
        "clipped_policy_loss",
        "clipped_value_loss",
    }
    assert with_gradient >= differentiable


@pytest.mark.parametrize("fault", ["shape", "alias", "none"])
def test_a_wrong_registration_is_reported(fault):
    """Negative control: a fake implementation with another shape, and one that returns its input."""
    fakes = {"shape": lambda x: x.new_empty(x.shape[0] + 1), "alias": lambda x: x, "none": torch.empty_like}
    with torch.library._scoped_library("coterie_tests", "FRAGMENT") as library:
        library.define(f"double_{fault}(Tensor x) -> Tensor")
        library.impl(f"double_{fault}", lambda x: x if fault == "alias" else 2 * x, "CPU")
        torch.library.register_fake(f"coterie_tests::double_{fault}", fakes[fault], lib=library)
        found = failures(getattr(torch.ops.coterie_tests, f"double_{fault}").default, torch.ones(3))
    expected = {"shape": {"test_faketensor"}, "alias": {"test_schema"}, "none": set()}
    assert set(found) >= expected[fault]
    assert bool(found) == (fault != "none")
