"""Settings of on-policy learners, and the sizes of their sequences and minibatches."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from algo_worlds import Everything, env_of
from coterie.algos.base_config import ClippedConfig, OnPolicyConfig
from coterie.algos.on_policy import require_samples
from coterie.algos.ppo import PPOConfig
from coterie.algos.sequences import sequence_length
from coterie.core.errors import UserError

DEFAULTS = {
    "critic_lr": None, "epochs": 5, "num_minibatches": None, "entropy_coef": 0.01, "entropy_schedule": "constant",
    "entropy_end": 0.1, "normalize_advantage": True, "hidden_sizes": (64, 64), "critic_hidden_sizes": None,
    "activation": "tanh", "clip_eps": 0.2, "value_coef": 1.0, "value_clip_eps": 0.2, "huber_delta": 10.0,
    "normalize_value": True, "value_norm_decay": 0.99999, "state_dependent_std": False, "init_std": 0.6,
    "obs_agent_id": None, "rollout_length": 32, "lr": 1e-3, "normalize_obs": True,
}  # fmt: skip

ALLOWED = {
    "critic_lr": (1e-9, 0.999), "epochs": (1, 1000), "num_minibatches": (1, 10_000), "entropy_coef": (0, 5),
    "entropy_end": (1e-9, 1), "clip_eps": (1e-9, 0.999), "value_coef": (1e-9,), "value_clip_eps": (1e-9, 5),
    "huber_delta": (1e-9, 5), "value_norm_decay": (1e-9, 0.9999999), "init_std": (1e-9, 10),
    "hidden_sizes": ((1,),), "critic_hidden_sizes": ((1,),),
}  # fmt: skip
FORBIDDEN = {
    "critic_lr": (0, 1), "epochs": (0, 1001), "num_minibatches": (0, 10_001), "entropy_coef": (-1e-9,),
    "entropy_end": (0, 1.001), "clip_eps": (0, 1), "value_coef": (0,), "value_clip_eps": (0,), "huber_delta": (0,),
    "value_norm_decay": (0, 1), "init_std": (0, 10.001), "hidden_sizes": ((),), "critic_hidden_sizes": ((),),
}  # fmt: skip


def test_defaults_are_those_of_the_documentation():
    fields = {**OnPolicyConfig.model_fields, **ClippedConfig.model_fields}
    assert {name: fields[name].default for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize("name", ALLOWED)
def test_settings_are_accepted_up_to_their_limits(name):
    for value in ALLOWED[name]:
        assert getattr(PPOConfig(**{name: value}), name) == value
    for value in FORBIDDEN[name]:
        with pytest.raises(ValidationError, match=name):
            PPOConfig(**{name: value})


def test_the_critic_has_the_hidden_layers_of_the_actor_unless_it_has_its_own():
    team = env_of(Everything(dead=0.0), 2).spec.default_teams()[0]
    assert PPOConfig(hidden_sizes=(8,)).critic_network_config(team).hidden_sizes == (8,)
    own = PPOConfig(hidden_sizes=(8,), critic_hidden_sizes=(5, 6))
    assert (own.critic_network_config(team).hidden_sizes, own.network_config(team).hidden_sizes) == ((5, 6), (8,))


@pytest.mark.parametrize(
    ("share", "setting", "reads"),
    [("all", None, True), ("role", None, False), ("none", None, False), ("all", False, False), ("role", True, True)],
)
def test_agents_of_one_shared_network_read_their_id_unless_configured(share, setting, reads):
    team = env_of(Everything(dead=0.0), 2).spec.default_teams()[0]
    config = PPOConfig(share_params=share, obs_agent_id=setting)
    assert config.reads_agent_id(team) is reads


def test_sequences_divide_the_rollout():
    assert (sequence_length(None, 12), sequence_length(4, 12), sequence_length(12, 12)) == (12, 4, 12)
    with pytest.raises(UserError, match=r"^algo.sequence_length: 5 does not divide the rollout length of 12. Choose"):
        sequence_length(5, 12)


def test_a_rollout_has_at_least_as_many_samples_as_minibatches():
    """Twelve timesteps of two environments: 24 timesteps, or six sequences of four."""
    require_samples("num_minibatches", 24, 12, 2, unit="timesteps")
    require_samples("num_minibatches", 6, 3, 2)
    with pytest.raises(
        UserError, match=r"^algo.num_minibatches: 25 is more than the 24 timesteps of a rollout \(2 env"
    ):
        require_samples("num_minibatches", 25, 12, 2, unit="timesteps")
    with pytest.raises(
        UserError, match=r"7 is more than the 6 sequences of a rollout \(2 environments x 3\). Lower it"
    ):
        require_samples("num_minibatches", 7, 3, 2)
    with pytest.raises(UserError, match=r"^algo.other: 7 is more than the 6 sequences"):
        require_samples("other", 7, 3, 2)
