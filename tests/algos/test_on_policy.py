"""Settings of on-policy learners, and the sizes of their sequences and minibatches."""

from __future__ import annotations

import pytest

from algo_worlds import Everything, env_of
from coterie.algos.on_policy import require_samples
from coterie.algos.ppo import PPOConfig
from coterie.algos.sequences import sequence_length
from coterie.core.errors import UserError


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
