"""Construction of the networks of Q-learning."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.algos.qlearning_config import QLearningConfig
from coterie.core.specs import TeamSpec
from coterie.nets.config import CentralInputs
from coterie.nets.joint_actions import JointAction
from coterie.nets.mixer_variants import UnrestrictedMixer, build_mixer
from coterie.nets.mixers import TeamQNetwork
from coterie.nets.team import CentralEncoder
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy


def build_policy(
    config: QLearningConfig, team: TeamSpec, draw: torch.Generator, device: torch.device
) -> EpsilonGreedyPolicy:
    """Returns the policy, which owns the agents' Q-networks; `draw` draws the initial weights."""
    network = replace(config.network_config(team), obs_last_action=config.obs_last_action, part="q")
    return EpsilonGreedyPolicy(team, network, draw, device, config.output_gain)


def build_value(
    config: QLearningConfig,
    team: TeamSpec,
    policy: EpsilonGreedyPolicy,
    state_name: str | None,
    draw: torch.Generator,
) -> TeamQNetwork:
    """Returns the Q-networks of the policy with the configured mixer.

    Args:
        config: Settings of the learner.
        team: The team.
        policy: The policy.
        state_name: Name of the environment state that the mixer reads; None if it reads joint observations.
        draw: Source of the initial weights.
    """
    joint = JointAction(team, policy.device)
    encoder = _build_encoder(team, state_name, draw) if config.mixer in ("qmix", "qplex") else None
    mixer = build_mixer(
        config.mixer,
        agents=team.n,
        state_size=0 if encoder is None else encoder.features,
        joint_size=joint.size,
        embed_dim=config.mixing_embed_dim,
        hidden=None if config.hypernet_layers == 1 else config.hypernet_embed_dim,
        generator=draw,
    )
    return TeamQNetwork(policy.net, mixer, encoder, joint)


def build_central(
    config: QLearningConfig, team: TeamSpec, state_name: str | None, draw: torch.Generator, device: torch.device
) -> TeamQNetwork:
    """Returns Q* of weighted QMIX: agent networks of its own and an unrestricted mixer; arguments as above."""
    encoder = _build_encoder(team, state_name, draw)
    mixer = UnrestrictedMixer(team.n, encoder.features, 4 * config.hypernet_embed_dim, draw)
    return TeamQNetwork(build_policy(config, team, draw, device).net, mixer, encoder, JointAction(team, device))


def _build_encoder(team: TeamSpec, state_name: str | None, draw: torch.Generator) -> CentralEncoder:
    size = team.state_sizes[state_name] if state_name else 0
    return CentralEncoder(team, CentralInputs(state_name is None, size), draw)
