"""What on-policy learners have in common: their settings, and what a window says to them.

That is: who is learned from, what is paid, where futures end, and sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.actor import ActorPolicy
from coterie.errors import NonFiniteError, UserError
from coterie.math.losses import clipped_surrogate, masked_mean, masked_moments
from coterie.math.running import Moments, ema_update
from coterie.math.schedules import Shape as ScheduleShape
from coterie.metrics import Metric, declare
from coterie.nets.layers import Activation, Init
from coterie.nets.memory import Carry, MemoryKind
from coterie.nets.team import Shape, Share
from coterie.types import Row, TeamSpec, Tree, Window, tree_map

METRICS = (
    Metric("loss/policy", "", "loss of the policy, mean over the update", None, "mean"),
    Metric("loss/value", "", "loss of the values on the scale that is learned, mean over the update", "down", "mean"),
    Metric("policy/entropy", "nat", "entropy of an agent's action distribution", None, "mean"),
    Metric(
        "policy/kl", "nat", "estimated divergence from the policy that collected, mean over the update", None, "mean"
    ),
    Metric("policy/clip_fraction", "share", "samples whose ratio lies outside the clip", None, "mean"),
    Metric("policy/grad_norm", "", "norm of the actor's gradient before the clip", None, "mean"),
    Metric("value/grad_norm", "", "norm of the critic's gradient before the clip", None, "mean"),
    Metric(
        "value/explained_variance", "share", "variance of the returns that the values explain; 1 is all", "up", "mean"
    ),
    Metric("policy/lr", "", "learning rate of the actor", None, "last"),
    Metric("policy/entropy_coef", "", "weight of the entropy bonus", None, "last"),
    Metric("policy/epochs", "", "passes over the window before the divergence stopped them", None, "mean"),
)
declare(*METRICS)

Units = Annotated[int, Field(ge=1, le=100_000)]


class OnPolicyConfig(BaseModel):
    """Settings that on-policy learners share."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    horizon: int = Field(128, ge=1, le=100_000)
    """Rows of a window: environment steps of every copy between two updates, restarts counted."""
    lr: float = Field(5e-4, gt=0, lt=1)
    """Adam's learning rate."""
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """The critic's learning rate; the actor's if not given."""
    lr_schedule: ScheduleShape = "constant"
    """How the learning rates go from the start to `lr_end` times their value."""
    lr_end: float = Field(0.01, gt=0, le=1)
    """Share of the learning rates left at the end of their schedule."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount a step."""
    epochs: int = Field(10, ge=1, le=1000)
    """Passes over a window."""
    minibatches: int = Field(1, ge=1, le=10_000)
    """Parts of a window, each one step of the optimiser; of the actor's where the critic has one of its own."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus at the start."""
    entropy_schedule: ScheduleShape = "constant"
    """How the weight of the entropy bonus goes to `entropy_end` times its value."""
    entropy_end: float = Field(0.1, gt=0, le=1)
    """Share of the entropy bonus left at the end of its schedule."""
    normalise_advantage: bool = True
    """Advantages are shifted and scaled over the live entries of what they are computed for, a window or a part."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Norm to which the gradients of actor and critic are clipped, each for itself; null: no clip."""
    adam_eps: float = Field(1e-5, gt=0)
    """Adam's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Adam's weight decay."""
    hidden: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the actor's hidden layers."""
    critic_hidden: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers; the actor's if not given."""
    activation: Activation = "tanh"
    """What stands behind every hidden layer."""
    layer_norm: bool = False
    """Normalise inputs and hidden layers by their features."""
    init: Init = "orthogonal"
    """How the weights of linear layers are drawn at the start: orthogonal, and small in the actor's last layer; or all
    from Xavier's normal distribution, with which a policy begins far from uniform. Mixers and MA-POCA's critic have
    their own.
    """
    memory: MemoryKind = "none"
    """Recurrent layer of actor and critic."""
    memory_size: int = Field(64, ge=1)
    """Units of the recurrent layer."""
    sequence: int | None = Field(None, ge=1)
    """Rows through which a recurrent network is trained at once; the whole window if not given."""
    share: Share = "role"
    """Who shares parameters: the agents of a role, all of the team (told apart by their id), or none."""
    agent_id: bool | None = None
    """Whether networks read who the agent is; by default only where share=all."""
    normalise_obs: bool = False
    """Observations are shifted and scaled by their running mean and spread."""

    @property
    def recurrent(self) -> bool:
        """Whether networks have a memory."""
        return self.memory != "none"

    @property
    def body(self) -> Shape:
        """How the actor is built."""
        return Shape(self.hidden, self.activation, self.layer_norm, self.memory, self.memory_size, self.init)

    @property
    def critic_body(self) -> Shape:
        """How the critic is built."""
        hidden = self.critic_hidden or self.hidden
        return Shape(hidden, self.activation, self.layer_norm, self.memory, self.memory_size, self.init)


class ClippedConfig(OnPolicyConfig):
    """Settings that learners share which clip the gain of their policy and of their values."""

    clip_eps: float = Field(0.2, gt=0, lt=1)
    """How far the ratio of new to old policy may move before the gain is cut."""
    value_coef: float = Field(1.0, gt=0)
    """Weight of the value loss."""
    value_clip_eps: float | None = Field(0.2, gt=0)
    """How far a value may move from the old one, on the normalised scale, before its gain is cut; null: no clip."""
    huber_delta: float | None = Field(10.0, gt=0)
    """Error from which on the value loss grows linearly; null: squared everywhere."""
    normalise_value: bool = True
    """Values are learned on the scale of their moving mean and spread."""
    value_beta: float = Field(0.99999, gt=0, lt=1)
    """Decay of the value statistics."""
    state_std: bool = False
    """The spread of continuous actions is an output of the actor, not a parameter."""
    init_std: float = Field(0.6, gt=0, le=10)
    """Spread of continuous actions at the start; their range is 2."""


def live(window: Window) -> Tensor:
    """[T, B, N]: the agent was there and acted."""
    return window.alive[:-1] & window.acted[:-1, :, None]


def group_members(team: TeamSpec) -> Tensor:
    """[G, N]: 1 where a group of the team holds an agent."""
    groups = list(dict.fromkeys(role.group for role in team.roles))
    owners = [groups.index(role.group) for role in team.roles for _ in role.agents]
    return torch.nn.functional.one_hot(torch.tensor(owners), len(groups)).T.float()


def paid(window: Window, members: Tensor, by_group: bool, as_team: bool) -> Tensor:
    """What every agent is paid [T, B, N]: its own reward and its group's; as_team: the mean of that over the team.

    members: of `group_members`; by_group: whether the environment pays groups at all.
    """
    reward = window.reward
    if by_group:
        reward = reward + window.group_reward @ members
    return reward.mean(-1, keepdim=True).expand_as(reward) if as_team else reward


def ends(window: Window, as_team: bool, mortal: bool) -> tuple[Tensor, Tensor]:
    """Where the value of the successor is cut off, and where the trace stops, [T, B, N].

    An independent learner's future ends with its agent; a team's (as_team) with the episode or with its last member,
    so that what the others earn later still reaches an agent that died.
    """
    if not as_team or not mortal:
        return window.terminated, window.terminated | window.truncated | ~window.acted[:-1, :, None]
    gone = window.terminated.any(-1) & ~window.alive[1:].any(-1)
    ended = window.episode_terminated | gone
    boundary = ended | window.episode_truncated | ~window.acted[:-1]
    shape = window.terminated.shape
    return ended.unsqueeze(-1).expand(shape), boundary.unsqueeze(-1).expand(shape)


def begins(window: Window, as_team: bool) -> Tensor:
    """Where a critic's memory starts anew: with its agent [T + 1, B, N], or with the copy's episode [T + 1, B, 1]
    (as_team).

    An episode begins behind a closing row. Of a window's first row nobody knows what was before: there it is taken to
    begin if all who live have just begun.
    """
    if not as_team:
        return window.first
    fresh = (window.first[:1] == window.alive[:1]).all(-1) & window.first[:1].any(-1)
    return torch.cat([fresh, ~window.acted[:-1]]).unsqueeze(-1)


def row_begins(rows: Row, as_team: bool) -> Tensor:
    """The same of single rows, with an axis of one row in front: [1, B, N], or [1, B, 1] (as_team)."""
    if not as_team:
        return rows.first
    return ((rows.first == rows.alive).all(-1) & rows.first.any(-1)).unsqueeze(-1)


def sequences(tree: Tree, length: int) -> Tree:
    """Tensors [T, B, ..] cut into sequences [length, S, ..], S = T / length x B, pieces of one time side by side."""
    return tree_map(lambda x: x.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2), tree)


def cut(window: Window, length: int, carry: Carry) -> Window:
    """The window as one of sequences [length, S, ..], S as in `sequences`, each with the row that follows it to look
    ahead; carry: the policy's memory before each, [S, N, ..] by name.
    """
    starts = range(0, window.horizon, length)
    rows = {"obs", "action_mask", "state", "alive", "first", "acted"}
    parts: dict[str, Any] = {"carry": carry}
    for name, value in vars(window).items():
        if name in rows:
            parts[name] = tree_map(lambda x: torch.cat([x[at : at + length + 1] for at in starts], 1), value)
        elif name != "carry":
            parts[name] = sequences(value, length)
    return Window(**parts)


def select(window: Window, copies: Tensor) -> Window:
    """The window of some of its copies, or of some of the sequences that were made of it."""
    return Window(
        **{
            name: tree_map(lambda x, axis=int(name != "carry"): x.index_select(axis, copies), value)
            for name, value in vars(window).items()
        }
    )


def deal(copies: int, parts: int, batch: int | None, shuffle: torch.Generator) -> list[Tensor | None]:
    """Which of a window's copies, or sequences, each part learns from; None: from all.

    batch: so many are drawn anew for each part, none of them twice; None: all are dealt out to the parts.
    """
    if batch is not None:
        return [torch.randperm(copies, generator=shuffle)[:batch] for _ in range(parts)]
    return [None] if parts == 1 else [*_split(torch.randperm(copies, generator=shuffle), parts)]


def _split(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    """`parts` parts, of which none is empty: fewer only where there is less to deal out."""
    even = order.chunk(parts)  # may come out as fewer: 16 in 9 parts are 8 of 2
    return even if len(even) == parts or len(order) < parts else order.tensor_split(parts)


def require_enough(name: str, wanted: int, pieces: int, copies: int, what: str = "sequences") -> None:
    """UserError if `copies` windows of so many pieces (`what`) are fewer than the `wanted` that `algo.{name}` asks
    for.
    """
    if wanted > pieces * copies:
        raise UserError(
            f"algo.{name}={wanted} is more than a window's {pieces * copies} {what} "
            f"({copies} copies x {pieces}): lower it, or raise copies or algo.horizon"
        )


def require_minibatches(wanted: int, length: int | None, horizon: int, copies: int) -> None:
    """UserError if a window has fewer sequences of `length` rows, or without sequences fewer rows, than
    `algo.minibatches` asks for.
    """
    if length is None:
        require_enough("minibatches", wanted, horizon, copies, "rows")
    else:
        require_enough("minibatches", wanted, horizon // length, copies)


def backwards(length: int, chunks: int, learn: Callable[[slice], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A critic's steps on stretches of time, from the last to the first: what it said of all rows [length, ..], of each
    before the step on it, and the mean report.

    chunks: how many; rows left over go to the last in time, more than there are rows: one step a row; learn: takes a
    step on some rows and returns what was said of them before [rows, ..], and a report.
    """
    said, reports = [], []
    for rows in torch.arange(length).flip(0).tensor_split(min(chunks, length)):
        before, report = learn(slice(int(rows[-1]), int(rows[0]) + 1))
        said.append(before)
        reports.append(report)
    return torch.cat(said[::-1]), torch.stack(reports).mean(0)


def actor_starts(policy: ActorPolicy, obs: dict[str, Tree], window: Window, length: int) -> Carry:
    """The actor's memory before each of `sequences` [S, N, H], computed anew; obs: the window's, as networks read
    them.
    """
    carry, starts = window.carry, []
    for at in range(0, window.horizon, length):
        starts.append(carry)
        if at + length < window.horizon:
            seen = tree_map(lambda x, at=at: x[at : at + length], obs)
            carry = policy.unroll(seen, window.first[at : at + length], carry)
    return tree_map(lambda *x: torch.cat(x), *starts)


def minibatches(
    batch: Any, carries: Tree | None, rows: Tensor, parts: int, shuffle: torch.Generator
) -> Iterator[tuple[Any, Tree | None]]:
    """`parts` parts of a batch in a new random order, each with the memories before it.

    batch: rows [M, ..], or sequences [L, M, ..] with carries [M, ..]; rows: places along M that are drawn from.
    """
    axis = 0 if carries is None else 1
    order = rows[torch.randperm(len(rows), generator=shuffle).to(rows.device)]
    for part in _split(order, parts):
        minibatch = tree_map(lambda x, part=part: x.index_select(axis, part), batch)
        yield minibatch, carries and tree_map(lambda x, part=part: x.index_select(0, part), carries)


def clipped_policy(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, live: Tensor | None, clip_eps: float
) -> tuple[Tensor, Tensor]:
    """The clipped loss of a policy, and [2] its divergence from the one that collected and the share that lies outside
    the clip; all but `clip_eps` are [.., N].
    """
    log_ratio = log_prob - old_log_prob
    if live is not None:  # nothing of a masked place may reach exp
        log_ratio = torch.where(live, log_ratio, 0.0)
    ratio = log_ratio.exp()
    loss = masked_mean(clipped_surrogate(ratio, advantage, clip_eps), live)
    with torch.no_grad():
        divergence = masked_mean(ratio - 1 - log_ratio, live)
        clipped = masked_mean(((ratio - 1).abs() > clip_eps).float(), live)
    return loss, torch.stack([divergence, clipped])


def explained_variance(target: Tensor, missed: Tensor, valued: Tensor) -> Tensor:
    """Share of the variance of returns [.., N] that values explain which miss them by so much, where `valued` holds."""
    left, spread = masked_moments(missed, valued)[1], masked_moments(target, valued)[1]
    return 1 - left / spread.clamp(min=1e-8)


def learn_scale(moments: Moments, target: Tensor, valued: Tensor, beta: float) -> Moments:
    """The moments of each signal's returns [.., K], moved towards those where `valued` [..] holds."""
    mean, variance = (torch.stack(x) for x in zip(*(masked_moments(x, valued) for x in target.unbind(-1)), strict=True))
    return ema_update(moments, mean, variance + mean.square(), beta)


def means(reports: Tensor, names: tuple[str, ...], team: str) -> dict[str, float]:
    """What an update reports: reports [R, names], a row a minibatch, averaged. The one read by the host.

    NonFiniteError names what is not a number, and the first minibatch where.
    """
    metrics = dict(zip(names, reports.mean(0).tolist(), strict=True))
    bad = [name for name, value in metrics.items() if not abs(value) < float("inf")]
    if bad:
        part = int((~reports.isfinite().all(1)).nonzero()[0])
        raise NonFiniteError(
            f"team {team}: {', '.join(bad)} became NaN or infinite in minibatch {part} of the update; "
            "a smaller algo.lr or algo.max_grad_norm often mends this"
        )
    return metrics


def sequence_length(wanted: int | None, horizon: int) -> int:
    """Rows of a sequence: `wanted`, or the whole window. UserError if windows cannot be cut so."""
    length = wanted or horizon
    if horizon % length:
        raise UserError(f"algo.sequence={length} does not divide the horizon of {horizon} rows: choose a divisor")
    return length


def state_name(team: TeamSpec, critic: str) -> str:
    """The state that a critic reads: the team's own if the environment shows one, else the global one."""
    for name in (*dict.fromkeys(role.group for role in team.roles), "global"):
        if name in team.state_sizes:
            return name
    raise UserError(f"algo.critic={critic} needs an environment state, and there is none here: use algo.critic=joint")
