"""Mixers of users."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algo_worlds import Everything, env_of
from coterie.config import callables
from coterie.core.errors import UserCodeError, UserError
from coterie.core.seeds import generator
from coterie.nets.config import ModuleFactory
from coterie.nets.user_mixer import UserMixer
from learners import collect_rollout, q_learner


class Weighted(nn.Module):
    def __init__(self, agents: int, state_size: int):
        super().__init__()
        self.weights = nn.Linear(state_size, agents)

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        return (nn.functional.softplus(self.weights(state)) * values).sum(-1)


class Mean(nn.Module):
    """The mean over agents that are alive."""

    def __init__(self, agents: int, state_size: int, embed_dim: int = 0):
        super().__init__()
        self.embed_dim = embed_dim

    def forward(self, values: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        return values.sum(-1) / alive.sum(-1).clamp(min=1)


class WithAxis(Weighted):
    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        return super().forward(values, state).unsqueeze(-1)


class Summed(Weighted):
    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        return super().forward(values, state).sum()


class Casting(Weighted):
    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        return super().forward(values, state).double()


class Pair(Weighted):
    def forward(self, values: Tensor, state: Tensor) -> Any:
        return values, state


class Failing(Weighted):
    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        if len(values) > 2:
            raise RuntimeError("too\nlong")
        return super().forward(values, state)


def mixer(make: Any, seed: int = 0) -> UserMixer:
    factory = ModuleFactory("lab:Mixer", "algo.mixer", make)
    return UserMixer(factory, agents=3, state_size=4, embed_dim=7, generator=generator(seed, "weights"))


def call(mixer: UserMixer, values: Tensor, state: Tensor, alive: Tensor) -> Tensor:
    return mixer(values, values, state, values, alive=alive)


def test_it_mixes_values_with_the_state():
    found, values, state = mixer(Weighted), torch.randn(5, 2, 3), torch.randn(5, 2, 4)
    out = call(found, values, state, torch.ones(5, 2, 3, dtype=torch.bool))
    torch.testing.assert_close(out, found.module(values, state))
    assert out.shape == (5, 2)


def test_arguments_with_a_parameter_of_their_name_are_passed():
    found = mixer(Mean)
    assert found.module.embed_dim == 7
    values, alive = torch.tensor([[2.0, 4.0, 0.0]]), torch.tensor([[True, True, False]])
    assert call(found, values, torch.zeros(1, 4), alive).tolist() == [3.0]


def test_weights_depend_on_the_seed_of_the_run_alone():
    def weights(seed: int) -> Tensor:
        return mixer(Weighted, seed).module.weights.weight

    torch.manual_seed(1)
    first, state = weights(0), torch.get_rng_state()
    assert torch.equal(weights(0), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(weights(1), first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (WithAxis, r"returned shape \[2, 3, 1\] for values of shape \[2, 3, 3\] and a state of shape \[2, 3, 4\]"),
        (Summed, r"returned shape \[\] .*\(test_user_mixer.py:\d+\): expected \[2, 3\]"),
        (Casting, "has outputs or parameters of torch.float64"),
        (Pair, "returned a tuple for values"),
        (lambda agents, state_size: 3, r"returned a int .*: expected a torch.nn.Module from \[.., agents\] and"),
        (lambda agents: nn.Identity(), r"failed: TypeError.* It is called as <lambda>\(agents, state_size, embed_dim="),
        (lambda agents, state_size: nn.Linear(3, 1), r"failed in forward on values of shape \[2, 3, 3\]"),
        (lambda agents, state_size: nn.Sequential(nn.Dropout()), "contains Dropout"),
    ],
)
def test_another_interface_is_one_line(make: Any, message: str):
    with pytest.raises(UserError, match=rf"^algo\.mixer=lab:Mixer {message}"):
        mixer(make)


def test_an_exception_in_training_names_the_mixer():
    with pytest.raises(UserCodeError, match=r"^algo.mixer=lab:Mixer failed in forward: RuntimeError: too long"):
        call(mixer(Failing), torch.zeros(3, 2, 3), torch.zeros(3, 2, 4), torch.ones(3, 2, 3, dtype=torch.bool))


@pytest.mark.parametrize("settings", [{"rnn": "gru"}, {"weighting": "central"}])
def test_it_is_trained_with_its_target_where_agents_die(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """The team has two roles and a state."""
    monkeypatch.setattr(callables, "_functions", {})
    settings |= {"mixer": callables.name_of(Weighted), "target_update_interval": 1}
    learner, collector = q_learner(env_of(Everything("discrete"), 4), **settings)
    before = [p.clone() for p in learner.value.mixer.parameters()]
    for _ in range(2):
        learner.update(collect_rollout(learner, collector), 0.5)
    for networks in (learner.value, learner.target_value):
        pairs = zip(networks.mixer.parameters(), before, strict=True)
        assert not any(torch.equal(new, old) for new, old in pairs)
