"""Settings of MA-POCA and its metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coterie.algos.base_config import Units
from coterie.algos.on_policy import ClippedConfig
from coterie.algos.optimizer import Schedule
from coterie.core.metrics import Metric, declare
from coterie.nets.config import Activation
from coterie.nets.entity_critic import HEADS

declare(
    Metric(
        "loss/baseline",
        "",
        "baseline loss on the normalized scale, mean over the update",
        better="down",
        combine="mean",
    ),
    Metric(
        "value/baseline",
        "reward",
        "mean baseline of the members, before the update, of the environment's reward",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/group_return",
        "reward",
        "mean lambda-return of the group, the target of value and baselines, of the environment's reward",
        better="up",
        combine="mean",
    ),
    Metric("policy/clip_eps", "", "clip range of the policy ratio", better=None, combine="last"),
)


class POCAConfig(ClippedConfig):
    """Settings of MA-POCA."""

    rollout_length: int = Field(64, ge=1, le=100_000)
    lr: float = Field(3e-4, gt=0, lt=1)
    lr_schedule: Schedule = "linear"
    lr_end: float = Field(1e-6, gt=0, le=1)
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step of the environment's reward."""
    extrinsic_weight: float = Field(1.0, ge=0, le=10**6)
    """Weight of the environment's reward among the reward signals, multiplied by `rewards.extrinsic.weight`."""
    td_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of the returns."""
    signal_returns: Literal["member", "group"] = "member"
    """Returns of reward signals besides the environment's: of each member's own rewards, as in ML-Agents (member), or
    of their sum over the group (group).
    """
    member_end: Literal["group", "member"] = "group"
    """Trace of the return of a member that ends before its group: it continues through the group's later steps (group),
    or ends with the member and bootstraps from the group's next value, as in ML-Agents (member).
    """
    clip_eps: float = Field(0.2, gt=0, lt=1)
    """Initial clip range of the policy ratio."""
    clip_schedule: Schedule = "linear"
    """Schedule of the clip range, from `clip_eps` to `clip_end` times `clip_eps` over the run."""
    clip_end: float = Field(0.5, gt=0, le=1)
    """Final clip range as a fraction of the initial one."""
    epochs: int = Field(3, ge=1, le=1000)
    num_minibatches: int = Field(4, ge=1, le=10_000)
    entropy_coef: float = Field(5e-3, ge=0, le=10**6)
    entropy_schedule: Schedule = "linear"
    entropy_end: float = Field(2e-3, gt=0, le=1)
    value_coef: float = Field(1.0, gt=0, le=10**6)
    """Weight of the value loss and the baseline loss together."""
    baseline_coef: float = Field(0.5, gt=0, le=10**6)
    """Weight of the baseline loss relative to the value loss."""
    hidden_sizes: tuple[Units, ...] = Field((128, 128), min_length=1)
    critic_hidden_sizes: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers after the attention; null: `hidden_sizes`."""
    embedding_size: int = Field(128, ge=HEADS, le=100_000, multiple_of=HEADS)
    """Size of an agent's embedding in the critic's attention; a multiple of its 4 heads."""
    activation: Activation = "silu"
    layer_norm: bool = False
    """Apply layer normalization to the input and to each hidden layer. The attention has its own in any case."""
