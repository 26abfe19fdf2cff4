"""Modules of users in place of hidden layers."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algo_worlds import Probe, env_of, observe_x, unit_reward
from coterie.core.errors import ReportedError, UserCodeError, UserError
from coterie.core.seeds import generator
from coterie.nets.config import ModuleFactory, NetworkConfig
from coterie.nets.layers import MLP
from coterie.nets.team import AgentNetwork
from coterie.nets.user_body import UserBody, build_body
from learners import coma_learner, ddpg_learner, poca_learner, ppo_learner, q_learner, sac_learner


class Wide(nn.Module):
    def __init__(self, input_size: int):
        super().__init__()
        self.layer = nn.Linear(input_size, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


class Averaging(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(0)


class Recurrent(nn.Module):
    def __init__(self, input_size: int):
        super().__init__()
        self.rnn = nn.GRU(input_size, 7)

    def forward(self, x: Tensor) -> Any:
        return self.rnn(x)


class Casting(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).double()


class Doubled(Wide):
    """Numbers of double precision between inputs and outputs of single precision."""

    def forward(self, x: Tensor) -> Tensor:
        return self.double().layer(x.double()).float()


class Last(nn.Module):
    """Returns `found`, whatever the input."""

    def __init__(self, found: Any):
        super().__init__()
        self.found = found

    def forward(self, x: Tensor) -> Any:
        return self.found


class Refusing(Wide):
    """Refuses inputs of more than `most` rows with a message of its own."""

    most = 0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise UserError("lab: too wide. Make it smaller.")
        return super().forward(x)


class Failing(Wide):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise RuntimeError("too\nmany rows")
        return super().forward(x)


def body(make: Any, in_features: int = 5, sets: int | None = None, seed: int = 0, **config: Any) -> MLP | UserBody:
    factory = ModuleFactory("lab:make", "algo.network", make)
    return build_body(in_features, NetworkConfig(body=factory, **config), generator(seed, "weights"), sets)


def test_the_size_of_the_output_is_that_of_the_module():
    found = body(Wide)
    assert found.features == 7
    assert found(torch.zeros(11, 5)).shape == (11, 7)
    network = AgentNetwork(5, 3, NetworkConfig(body=ModuleFactory("lab:Wide", "algo.network", Wide)), generator(0, "w"))
    out, _ = network(torch.randn(4, 2, 5), None, {})
    assert out.shape == (4, 2, 3)


def test_each_parameter_set_has_a_module_of_its_own():
    found, x = body(Wide, sets=3), torch.randn(3, 4, 5)
    out = found(x)
    assert out.shape == (3, 4, 7)
    assert isinstance(found, UserBody)
    for own, part, rows in zip(out, found.parts, x, strict=True):
        torch.testing.assert_close(own, part(rows))
    assert not torch.equal(found.parts[0].layer.weight, found.parts[1].layer.weight)  # pyright: ignore


def test_weights_depend_on_the_seed_of_the_run_alone():
    torch.manual_seed(1)
    first = body(Wide)
    state = torch.get_rng_state()
    second = body(Wide)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c in zip(first.parameters(), second.parameters(), body(Wide, seed=1).parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_factories_receive_role_and_part_if_they_have_such_parameters():
    seen: list[dict[str, Any]] = []

    def everything(size: int, **given: Any) -> nn.Module:
        seen.append(given)
        return nn.Linear(size, 4)

    def part_only(size: int, part: str) -> nn.Module:
        seen.append({"part": part})
        return nn.Linear(size, 4)

    def no_names(size: int, role: int = 5, /) -> nn.Module:
        seen.append({"positional": role})
        return nn.Linear(size, 4)

    body(everything, role="seeker", part="critic")
    body(no_names, role="seeker")
    body(part_only, part="q")
    body(functools.partial(everything, width=3), role="seeker")
    assert seen == [
        {"role": "seeker", "part": "critic"},
        {"positional": 5},
        {"part": "q"},
        {"role": "seeker", "part": "actor", "width": 3},
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            Averaging,
            r"returned shape \[7\] for an input of shape \[3, 5\] \(test_user_body.py:\d+\): expected \[3, feat",
        ),
        (
            lambda n: Last(torch.zeros(1, 4)),
            r"returned shape \[1, 4\] for .*: expected \[3, features\]. Return one row",
        ),
        (lambda n: Last(None), r"returned a NoneType for .* \(test_user_body.py:\d+\): expected a tensor\.$"),
        (Doubled, r"has outputs or parameters of torch.float64 \(test_user_body.py:\d+\): expected torch.float32"),
        (lambda n: sys.exit("no\nway"), r"failed: SystemExit: no way .* It is called as <lambda>\(input_size"),
        (Recurrent, r"returned a tuple for .* \(test_user_body.py:\d+\).*set algo.rnn=gru"),
        (lambda n: nn.Sequential(nn.Linear(n, 4), nn.Dropout()), r"contains Dropout \(test_user_body.py:\d+\)"),
        (lambda n: nn.Sequential(nn.Linear(n, 4), nn.BatchNorm1d(4)), "contains BatchNorm1d .*LayerNorm is supported"),
        (lambda n: nn.Linear(n, 4).double(), r"failed in forward on an input of shape \[3, 5\]: RuntimeError"),
        (Casting, r"has outputs or parameters of torch.float64 \(test_user_body.py:\d+\): expected torch.float32"),
        (lambda n: nn.Linear(n + 1, 4), r"failed in forward on .* shapes cannot be multiplied"),
        (lambda n: torch.zeros(n), r"returned a Tensor \(test_user_body.py:\d+\): expected a torch.nn.Module"),
        (lambda: nn.Linear(5, 4), r"failed: TypeError: .* It is called as <lambda>\(input_size, role=, part=\)"),
        (lambda n: nn.Linear(n, 1 // 0), r"failed: ZeroDivisionError: .* \(test_user_body.py:\d+\)"),
    ],
)
def test_a_body_that_does_not_fit_is_an_error_of_one_line_with_the_place(make: Any, message: str):
    with pytest.raises(UserError, match=f"^algo.network=lab:make {message}"):
        body(make)


def test_agents_of_a_role_need_modules_of_one_size():
    sizes = iter([6, 4, 6])
    with pytest.raises(UserError, match=r"returned modules with 4 and 6 features for agents of one role\. Return the"):
        body(lambda n: nn.Linear(n, next(sizes)), sets=3)
    sizes = iter([6, 6, 6])
    assert body(lambda n: nn.Linear(n, next(sizes)), sets=3).features == 6


def test_errors_of_users_keep_their_message():
    """In the factory, in the first call of the module, and in a later one."""

    def refuse(n: int) -> nn.Module:
        raise UserError("lab: too wide. Make it smaller.")

    for make in (refuse, Refusing):
        with pytest.raises(UserError, match=r"^lab: too wide\. Make it smaller\.$"):
            body(make)
    found = body(type("Later", (Refusing,), {"most": 3}))
    with pytest.raises(UserError, match=r"^lab: too wide\. Make it smaller\.$"):
        found(torch.zeros(4, 5))


class Workshop:
    """A factory that is an object."""

    def __call__(self, size: int) -> Any:
        return size


def test_the_place_of_a_factory_is_that_of_its_definition():
    """Of functions, classes, objects and partial functions; C functions have none."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    start = lines.index("class Workshop:") + 1
    for make in (Workshop(), functools.partial(Workshop())):
        with pytest.raises(UserError, match=rf"returned a int \(test_user_body.py:{start}\): expected"):
            body(make)
    with pytest.raises(UserError, match=r"returned a float: expected"):
        body(math.sqrt)


def test_agents_with_their_own_parameters_need_different_modules():
    shared = nn.Linear(5, 4)
    with pytest.raises(UserError, match=r"returned the same module twice.*share_params=none"):
        body(lambda n: shared, sets=2)


def test_an_exception_during_the_run_names_file_and_line():
    with pytest.raises(
        UserCodeError,
        match=r"^algo.network=lab:make failed in forward: RuntimeError: too many rows \(test_user_body.py:\d+\)",
    ) as error:
        body(Failing)(torch.zeros(4, 5))
    assert isinstance(error.value, ReportedError)
    assert isinstance(error.value.__cause__, RuntimeError)


def cooperating() -> Probe:
    return Probe(observe_x, unit_reward, n=2, length=4)


CALLS: list[tuple[int, str | None, str]] = []


def recorded(input_size: int, role: str | None, part: str) -> nn.Module:
    CALLS.append((input_size, role, part))
    return Wide(input_size)


@pytest.mark.parametrize(
    ("make", "settings", "expected"),
    [
        (ppo_learner, {"critic": "own"}, {("agent", "actor"), ("agent", "critic")}),
        (ppo_learner, {"critic": "joint"}, {("agent", "actor"), (None, "critic")}),
        (ppo_learner, {"critic_network": "mlp"}, {("agent", "actor")}),
        (poca_learner, {}, {("agent", "actor"), (None, "critic")}),
        (coma_learner, {}, {("agent", "actor"), ("agent", "critic")}),
        (ddpg_learner, {"critic": "own"}, {("agent", "actor"), ("agent", "critic")}),
        (ddpg_learner, {"critic": "joint", "rnn": "gru"}, {("agent", "actor"), (None, "critic")}),
        (sac_learner, {"critic": "own"}, {("agent", "actor"), ("agent", "critic")}),
    ],
)
def test_every_part_of_a_learner_is_made_by_the_factory(make: Any, settings: dict[str, Any], expected: set):
    CALLS.clear()
    learner, collector = make(cooperating(), network=f"{__name__}:recorded", **settings)
    assert {(role, part) for _, role, part in CALLS} == expected
    rollouts, _ = collector.advance(learner.rollout_length)
    learner.update(rollouts["agent"], 0.5)


@pytest.mark.parametrize("settings", [{}, {"mixer": "qmix"}, {"mixer": "qmix", "rnn": "gru"}])
def test_q_networks_are_made_by_the_factory(settings: dict[str, Any]):
    CALLS.clear()
    learner, collector = q_learner(env_of(cooperating(), 8), network=f"{__name__}:recorded", **settings)
    assert {(role, part) for _, role, part in CALLS} == {("agent", "q")}
    for _ in range(2):
        rollouts, _ = collector.advance(learner.rollout_length)
        learner.update(rollouts["agent"], 0.5)
