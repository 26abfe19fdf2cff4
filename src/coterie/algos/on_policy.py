"""Settings of on-policy learners, their common metrics, and the construction of their policies."""

from __future__ import annotations

import torch
from pydantic import Field

from coterie.algos.base_config import CriticConfig, Units
from coterie.algos.optimizer import Schedule
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.nets.config import Activation
from coterie.policies.stochastic import StochasticPolicy

METRICS = (
    Metric(
        "loss/value", "", "value loss on the scale that is learned, mean over the update", better="down", combine="mean"
    ),
    Metric(
        "policy/kl",
        "nat",
        "estimated KL divergence from the policy that collected the rollout",
        better=None,
        combine="mean",
    ),
    Metric(
        "policy/clip_fraction",
        "share",
        "samples whose policy ratio is outside the clip range",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/explained_variance",
        "share",
        "variance of the returns that the values explain; 1 is all",
        better="up",
        combine="mean",
    ),
    Metric(
        "policy/advantage",
        "",
        "mean advantage of the actions taken, before normalization",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/estimate",
        "reward",
        "mean value of the rollout's timesteps before the update, of the environment's reward",
        better=None,
        combine="mean",
    ),
    Metric("policy/entropy_coef", "", "weight of the entropy bonus", better=None, combine="last"),
    Metric(
        "policy/epochs",
        "",
        "passes over the rollout before the KL divergence ended the update",
        better=None,
        combine="mean",
    ),
)
declare(*METRICS)


class OnPolicyConfig(CriticConfig):
    """Settings shared by on-policy learners."""

    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critic; null: `lr`."""
    epochs: int = Field(10, ge=1, le=1000)
    """Passes over each rollout."""
    num_minibatches: int = Field(1, ge=1, le=10_000)
    """Minibatches per pass. Each is one gradient step, or one of the actor if the critic has steps of its own."""
    entropy_coef: float = Field(0.01, ge=0, le=10**6)
    """Initial weight of the entropy bonus."""
    entropy_schedule: Schedule = "constant"
    """Schedule of the entropy bonus, from its initial weight to `entropy_end` times that weight over the run."""
    entropy_end: float = Field(0.1, gt=0, le=1)
    """Final weight of the entropy bonus as a fraction of the initial weight."""
    normalize_advantage: bool = True
    """Normalize advantages over all valid entries that they are computed for, a rollout or a batch of sequences."""
    hidden_sizes: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the actor's hidden layers."""
    activation: Activation = "tanh"


class ClippedConfig(OnPolicyConfig):
    """Settings shared by learners that clip the policy ratio and the value."""

    clip_eps: float = Field(0.2, gt=0, lt=1)
    """Clip range of the policy ratio."""
    value_coef: float = Field(1.0, gt=0, le=10**6)
    """Weight of the value loss."""
    value_clip_eps: float | None = Field(0.2, gt=0, le=10**12)
    """Clip range of the value around its old value, on the normalized scale; null: no clipping."""
    huber_delta: float | None = Field(10.0, gt=0, le=10**12)
    """Error above which the value loss is linear (Huber loss); null: squared error."""
    normalize_value: bool = True
    """Learn values that are normalized by the moving mean and standard deviation of the returns."""
    value_norm_decay: float = Field(0.99999, gt=0, lt=1)
    """Decay of the moving return statistics."""
    state_dependent_std: bool = False
    """The standard deviation of continuous actions is an output of the actor; false: a learned parameter."""
    init_std: float = Field(0.6, gt=0, le=10)
    """Initial standard deviation of continuous actions, whose range has length 2."""
    obs_agent_id: bool | None = None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""

    def reads_agent_id(self, team: TeamSpec) -> bool:
        """Returns True if inputs include the agent's id: as configured, by default only with share_params=all."""
        return self.share_params == "all" if self.obs_agent_id is None else self.obs_agent_id


def build_actor(
    config: ClippedConfig, team: TeamSpec, weights: torch.Generator, device: torch.device
) -> StochasticPolicy:
    """Returns the policy that a clipped policy-gradient method trains; `weights` draws its initial parameters."""
    return StochasticPolicy(
        team,
        config.network_config(team),
        weights,
        device,
        state_dependent_std=config.state_dependent_std,
        init_std=config.init_std,
    )


def sequence_length(length: int | None, rollout_length: int) -> int:
    """Returns the timesteps per training sequence, by default the whole rollout.

    Raises:
        UserError: If the rollout cannot be split into sequences of this length.
    """
    length = length or rollout_length
    if rollout_length % length:
        raise UserError(
            f"algo.sequence_length: {length} does not divide the rollout length of {rollout_length}. Choose a divisor."
        )
    return length


def require_minibatches(num_minibatches: int, length: int | None, rollout_length: int, num_envs: int) -> None:
    """Raises UserError if a rollout has fewer samples than minibatches.

    Args:
        num_minibatches: Minibatches per pass.
        length: Timesteps per sequence; None if samples are single timesteps.
        rollout_length: Timesteps of the rollout.
        num_envs: Environments of the rollout.
    """
    if length is None:
        require_samples("num_minibatches", num_minibatches, rollout_length, num_envs, unit="timesteps")
    else:
        require_samples("num_minibatches", num_minibatches, rollout_length // length, num_envs)


def require_samples(setting: str, wanted: int, per_env: int, num_envs: int, *, unit: str = "sequences") -> None:
    """Raises UserError if `num_envs` environments with `per_env` samples each have fewer than `algo.{setting}`."""
    if wanted > per_env * num_envs:
        raise UserError(
            f"algo.{setting}: {wanted} is more than the {per_env * num_envs} {unit} of a rollout "
            f"({num_envs} environments x {per_env}). Lower it, or raise num_envs or algo.rollout_length."
        )
