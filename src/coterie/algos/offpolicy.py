"""What learners from replay have in common: their settings, when they learn, and target networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.algos.target import Target as Target
from coterie.math.schedules import Shape as ScheduleShape
from coterie.metrics import Metric, declare
from coterie.nets.layers import Activation, Init
from coterie.nets.memory import Carry, MemoryKind
from coterie.nets.team import Shape, Share
from coterie.replay import Replay
from coterie.schema import Count
from coterie.starts import Kind
from coterie.types import TeamSpec, Window, tree_map

declare(
    Metric("replay/sequences", "", "sequences that the replay memory holds to draw from", None, "sum"),
    Metric("replay/updates", "", "gradient steps so far", None, "max"),
)

Units = Annotated[int, Field(ge=1, le=100_000)]


class OffPolicyConfig(BaseModel):
    """Settings that learners from replay share."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    horizon: int = Field(26, ge=1, le=100_000)
    """Rows of a window: environment steps of every copy between two rounds of updates, restarts counted."""
    updates: int | None = Field(None, ge=1, le=100_000)
    """Gradient steps after every window; null: one for every 200 environment steps of it, at least one."""
    batch: int = Field(32, ge=1, le=1_000_000)
    """Sequences in a gradient step; single transitions are sequences of length one."""
    replay: Count = Field(100_000, ge=1)
    """Environment steps that the replay memory holds."""
    replay_store: Literal["device", "cpu", "disk"] = "device"
    """Where the replay memory lies: beside the networks, in the host's memory, or in memory-mapped files."""
    learning_starts: Count = Field(1_000, ge=0)
    """Environment steps before the first update."""
    priority_exponent: float = Field(0.0, ge=0, le=1)
    """How strongly sequences with large errors are preferred; 0 draws uniformly."""
    importance_exponent: float = Field(0.4, ge=0, le=1)
    """How far the preference is corrected in the loss, at the start; it rises linearly to 1 over the run."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount a step."""
    lr: float = Field(5e-4, gt=0, lt=1)
    """Adam's learning rate."""
    lr_schedule: ScheduleShape = "constant"
    """How the learning rates go from the start to `lr_end` times their value."""
    lr_end: float = Field(0.01, gt=0, le=1)
    """Share of the learning rates left at the end of their schedule."""
    tau: float = Field(0.01, gt=0, le=1)
    """Share of the online network that target networks take over with every soft copy."""
    target_every: int | None = Field(None, ge=1)
    """Gradient steps between two hard copies to the target networks; null: a soft copy after each."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Norm to which gradients are clipped, each network for itself; null: no clip."""
    adam_eps: float = Field(1e-5, gt=0)
    """Adam's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Adam's weight decay."""
    hidden: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the hidden layers of what acts."""
    activation: Activation = "relu"
    """What stands behind every hidden layer."""
    layer_norm: bool = False
    """Normalise inputs and hidden layers by their features."""
    init: Init = "orthogonal"
    """How the weights of linear layers are drawn at the start: orthogonal, and small in the actor's last layer; or all
    from Xavier's normal distribution, with which a policy begins far from uniform. Mixers and MA-POCA's critic have
    their own.
    """
    memory: MemoryKind = "none"
    """Recurrent layer."""
    memory_size: int = Field(64, ge=1)
    """Units of the recurrent layer."""
    sequence: int | None = Field(None, ge=1)
    """Rows of a sequence that a recurrent network learns from; as many as a window has if not given."""
    burn_in: int = Field(0, ge=0)
    """Rows before those, which only warm up a recurrent network's memory."""
    sequence_start: Literal["auto", "episode", "window"] = "auto"
    """Where sequences for recurrent networks begin: with an episode and an empty memory, or with a window of
    collecting and the memory that the acting network had there; auto: with an episode where no episode is longer than a
    sequence, else with a window.
    """
    share: Share = "role"
    """Who shares parameters: the agents of a role, all of the team (told apart by their id), or none."""
    agent_id: bool | None = None
    """Whether networks read who the agent is; by default where agents share parameters."""
    normalise_obs: bool = False
    """Observations are shifted and scaled by their running mean and spread."""
    team_reward: bool = False
    """Every agent is paid the mean of its team's rewards."""

    @property
    def recurrent(self) -> bool:
        """Whether networks have a memory."""
        return self.memory != "none"

    @property
    def body(self) -> Shape:
        """How networks are built."""
        return Shape(self.hidden, self.activation, self.layer_norm, self.memory, self.memory_size, self.init)

    def reads_id(self, team: TeamSpec) -> bool:
        """Whether networks read who the agent is: as asked, or where several agents share one network."""
        return (self.share != "none" and team.n > 1) if self.agent_id is None else self.agent_id


def build_replay(
    config: OffPolicyConfig,
    team: TeamSpec,
    copies: int,
    horizon: int,
    steps_ahead: int,
    states: tuple[str, ...],
    carry: Carry,
    seed: int,
    device: torch.device,
) -> Replay:
    """The memory that the settings ask for: transitions of `steps_ahead` steps, or sequences for recurrent networks.

    carry: what the acting network remembers of `copies` copies.
    """
    starts = _starts(config, team, horizon)
    return Replay(
        team,
        copies,
        horizon,
        capacity=config.replay,
        length=burn_in_and_sequence(config, horizon) if config.recurrent else steps_ahead,
        starts=starts,
        states=states,
        carry=carry if starts == "window" else {},
        least=config.batch,
        seed=seed,
        device=device,
        store=config.replay_store,
        priority_exponent=config.priority_exponent,
        importance_exponent=config.importance_exponent,
    )


def _starts(config: OffPolicyConfig, team: TeamSpec, horizon: int) -> Kind:
    """Where sequences begin."""
    if not config.recurrent:
        return "row"
    if config.sequence_start != "auto":
        return config.sequence_start
    limit = team.episode_limit
    whole = config.burn_in == 0 and limit is not None and limit <= (config.sequence or horizon)
    return "episode" if whole else "window"


def unlearned(config: OffPolicyConfig, team: TeamSpec, horizon: int) -> tuple[str, ...]:
    """What the settings leave out, a line each for the user: rows that no sequence learns from, keys without effect."""
    if not config.recurrent:
        given = {"sequence": config.sequence is not None, "burn_in": config.burn_in > 0}
        given["sequence_start"] = config.sequence_start != "auto"
        return tuple(
            f"algo.{name}={getattr(config, name)} changes nothing without a memory: algo.memory=gru, or leave it out"
            for name, is_given in given.items()
            if is_given
        )
    learned, limit, found = config.sequence or horizon, team.episode_limit, []
    if _starts(config, team, horizon) == "window":
        if learned < horizon:
            found.append(
                f"sequences begin with windows of {horizon} rows, and only {learned} rows of each are learned from: "
                f"leave algo.sequence out, or give algo.horizon={learned}"
            )
        return tuple(found)
    if limit is not None and limit > learned:
        found.append(
            f"episodes have up to {limit} steps, and nothing behind step {learned} is learned from: give "
            f"algo.sequence={limit}, or algo.sequence_start=window"
        )
    if config.burn_in:
        found.append(
            f"the first {config.burn_in} steps of every episode only warm the memory up and are never learned from: "
            "give algo.sequence_start=window, or leave algo.burn_in out"
        )
    return tuple(found)


def gradient_steps(config: OffPolicyConfig, horizon: int, copies: int) -> int:
    """Gradient steps after every window of so many rows and copies."""
    return config.updates or max(1, horizon * copies // 200)


def burn_in_and_sequence(config: OffPolicyConfig, horizon: int) -> int:
    """Steps of a sequence for recurrent networks, the rows that warm up the memory included."""
    return config.burn_in + (config.sequence or horizon)


def rows_of(window: Window, rows: slice) -> Window:
    """The rows of a window that networks read: observations, masks, states and flags; steps stay whole."""
    names = ("obs", "action_mask", "state", "alive", "first", "acted")
    return replace(window, **{name: tree_map(lambda x: x[rows], getattr(window, name)) for name in names})


def cut(window: Window, at: int) -> tuple[Window, Window]:
    """The first `at` rows, which warm up a memory, and what comes from there on as a window."""
    names = ("action", "reward", "group_reward", "terminated", "truncated", "episode_terminated", "episode_truncated")
    rest = {name: tree_map(lambda x: x[at:], getattr(window, name)) for name in names}
    warm = {"action": tree_map(lambda x: x[:at], window.action)}
    return replace(rows_of(window, slice(0, at)), **warm), replace(rows_of(window, slice(at, None)), **rest)


def sequence_error(error: Tensor, live: Tensor) -> Tensor:
    """One error [S] a sequence from errors [T, S, ..]: 0.9 of the largest and 0.1 of the mean over live entries.

    Source: Kapturowski et al. 2019, section 2.3.
    """
    error, live = (x.flatten(2).transpose(0, 1).flatten(1) if x.ndim > 2 else x.T for x in (error, live))
    error = torch.where(live, error, 0.0)
    return 0.9 * error.amax(1) + 0.1 * error.sum(1) / live.sum(1).clamp(min=1)
