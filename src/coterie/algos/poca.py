"""MA-POCA: clipped policy gradients for a group whose members come and go, each credited by a counterfactual baseline.

One critic reads the group as a set: V from everybody's observation, and for every member a baseline b_i from its own
observation and the others' observations and actions. The advantage is the group's lambda-return minus b_i: what the
member's own action changed. Values go on when a member leaves, as long as the group does, so that what the group earns
later reaches those who left for it (posthumous credit).

Source: Cohen et al. 2022.
Differs: the trace of a return goes on through the group's steps when a member leaves, where the original's stops and
bootstraps; values are learned on a normalised scale; a member has no trajectory of its own, so that V and its target
are computed once a copy; actor and critic are clipped apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.actor import ActorPolicy
from coterie.algos import onpolicy
from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities, Judging, require_alike
from coterie.algos.onpolicy import ClippedConfig, Units
from coterie.algos.optimiser import Optimiser
from coterie.algos.streams import Stream, Streams
from coterie.algos.student import Fitting, Student
from coterie.math.losses import clipped_value_error, masked_mean, standardise
from coterie.math.returns import lambda_return
from coterie.math.running import Moments, ema_scale, ema_start
from coterie.math.schedules import Shape as ScheduleShape
from coterie.math.schedules import scheduled
from coterie.metrics import Metric, declare
from coterie.nets.attention import HEADS
from coterie.nets.entities import EntityCritic
from coterie.nets.layers import Activation
from coterie.nets.memory import Carry
from coterie.nets.team import Share
from coterie.seeds import generator
from coterie.types import Action, Row, TeamSpec, Tree, Window, record, tree_map

declare(
    Metric("loss/baseline", "", "baseline loss on the normalised scale, mean over the update", "down", "mean"),
    Metric("policy/clip_eps", "", "how far the ratio may move", None, "last"),
)


class POCAConfig(ClippedConfig):
    """Settings of MA-POCA."""

    horizon: int = Field(64, ge=1, le=100_000)
    """Rows of a window: environment steps of every copy between two updates, restarts counted."""
    lr: float = Field(3e-4, gt=0, lt=1)
    """Adam's learning rate."""
    lr_schedule: ScheduleShape = "linear"
    """How the learning rates go from the start to `lr_end` times their value."""
    lr_end: float = Field(1e-6, gt=0, le=1)
    """Share of the learning rates left at the end of their schedule."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount a step of the environment's reward."""
    strength: float = Field(1.0, ge=0)
    """Weight of the environment's reward among the reward signals; times `rewards.extrinsic.strength`."""
    td_lambda: float = Field(0.95, ge=0, le=1)
    """Trace decay of the returns."""
    clip_eps: float = Field(0.2, gt=0, lt=1)
    """How far the ratio of new to old policy may move before the gain is cut, at the start."""
    clip_schedule: ScheduleShape = "linear"
    """How `clip_eps` goes to `clip_end` times its value."""
    clip_end: float = Field(0.5, gt=0, le=1)
    """Share of `clip_eps` left at the end of its schedule."""
    epochs: int = Field(3, ge=1, le=1000)
    """Passes over a window."""
    minibatches: int = Field(4, ge=1, le=10_000)
    """Parts of a window, each one step of the optimiser."""
    entropy_coef: float = Field(5e-3, ge=0)
    """Weight of the entropy bonus at the start."""
    entropy_schedule: ScheduleShape = "linear"
    """How the weight of the entropy bonus goes to `entropy_end` times its value."""
    entropy_end: float = Field(2e-3, gt=0, le=1)
    """Share of the entropy bonus left at the end of its schedule."""
    value_coef: float = Field(1.0, gt=0)
    """Weight of the value loss, half a squared error, and of the baselines' together."""
    baseline_coef: float = Field(0.5, gt=0)
    """Weight of the baselines' loss against that of the value."""
    hidden: tuple[Units, ...] = Field((128, 128), min_length=1)
    """Units of the actor's hidden layers."""
    critic_hidden: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers behind the attention; the actor's if not given."""
    embedding: int = Field(128, ge=HEADS, le=100_000, multiple_of=HEADS)
    """Units in which the critic's attention sees a member; a multiple of its 4 heads."""
    activation: Activation = "silu"
    """What stands behind every hidden layer."""
    layer_norm: bool = False
    """Normalise inputs and hidden layers by their features, beside what the attention normalises anyway."""
    share: Share = "role"
    """Whose actors share parameters: those of a role, all of the team (told apart by their id), or none."""
    agent_id: bool | None = None
    """Whether actors read who the agent is; by default only where share=all."""


def extrinsic(window: Window) -> Tensor:
    """What the environment paid the team at each step [T, B, 1]: members' own rewards and those of its groups.

    It is every member's reward: its own, its mates' own, and the group's.
    """
    return (window.reward.sum(-1) + window.group_reward.sum(-1)).unsqueeze(-1)


def shared(window: Window) -> Window:
    """The window with every reward stream summed over the members, as their own rewards are [T, B, 1]."""
    return replace(window, streams={name: x.sum(-1, keepdim=True) for name, x in window.streams.items()})


@record
@dataclass(frozen=True)
class Batch:
    """What the loss reads: [M, ..] rows, or [L, M, ..] sequences."""

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    """The team's lambda-returns on the normalised scale [.., 1, K]."""
    value: Tensor
    """V and baselines before the update on the normalised scale [.., 1 + N, K]."""
    present: Tensor | None
    """[.., N] bool, members that the critic sees; None: all."""
    live: Tensor | None
    """[.., N] bool, entries that the policy and the baselines learn from; None: all."""
    first: Tensor | None
    begins: Tensor | None


class POCA(Algorithm, Judging, Student):
    """See the module."""

    Config: ClassVar = POCAConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, streams=True)

    def __init__(
        self,
        team: TeamSpec,
        config: POCAConfig,
        copies: int,
        horizon: int | None,
        seed: int,
        device: torch.device,
        streams: tuple[Stream, ...] = (),
    ) -> None:
        """streams: what the team is rewarded for, what the environment pays first; none: that alone."""
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._length = onpolicy.sequence_length(config.sequence, self.horizon) if config.recurrent else None
        onpolicy.require_minibatches(config.minibatches, self._length, self.horizon, copies)
        agent_id = config.share == "all" if config.agent_id is None else config.agent_id
        require_alike(team, config.share)
        self.streams = Streams(streams, config.gamma, device)
        self._strength = self._strengths(0.0)
        draw = generator(seed, "weights")
        self.policy: ActorPolicy = ActorPolicy(
            team,
            config.body,
            config.share,
            agent_id,
            config.state_std,
            config.init_std,
            config.normalise_obs,
            draw,
            device,
        )
        self.critic = EntityCritic(team, len(self.streams), config.embedding, config.critic_body, draw).to(device)
        modules = {"policy": self.policy.module, "value": self.critic}
        self._optimiser = Optimiser(modules, config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._value_moments: Moments = ema_start(len(self.streams), device)
        self._carry = self.critic.start(copies, device)  # the critic's memory before the next window
        self._shuffle = generator(seed, "minibatches")

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        rates = {"policy": lr, "value": lr * (config.critic_lr or config.lr) / config.lr}
        clip_eps = config.clip_eps * scheduled(config.clip_schedule, 1.0, config.clip_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        self._strength = self._strengths(progress)
        with torch.no_grad():
            batch, starts, explained = self._targets(window)
        if self._length is None:
            rows = window.acted[:-1].flatten().nonzero().squeeze(-1)
            batch, carries = tree_map(lambda x: x.flatten(0, 1), batch), None
        else:
            with torch.no_grad():
                carries = {
                    "actor": onpolicy.actor_starts(self.policy, batch.obs, window, self._length),
                    "critic": tree_map(lambda *x: torch.cat(x), *starts),
                }
            batch = onpolicy.sequences(batch, self._length)
            rows = torch.arange(batch.log_prob.shape[1], device=self.device)
        reports: list[Tensor] = []
        for _ in range(config.epochs):
            for minibatch, before in onpolicy.minibatches(batch, carries, rows, config.minibatches, self._shuffle):
                loss, report = self._loss(minibatch, before, clip_eps, entropy_coef)
                norms = self._optimiser.step(loss, rates)
                reports.append(torch.cat([report, norms.detach()]))
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), onpolicy.live(window))
        names = ("loss/policy", "loss/value", "loss/baseline", "policy/entropy", "policy/kl", "policy/clip_fraction")
        metrics = onpolicy.means(torch.stack(reports), (*names, "policy/grad_norm", "value/grad_norm"), self.team.name)
        metrics |= {"value/explained_variance": float(explained), "policy/lr": lr}
        return metrics | {"policy/entropy_coef": entropy_coef, "policy/clip_eps": clip_eps}

    def _targets(self, window: Window) -> tuple[Batch, list[Carry], Tensor]:
        """The batch, the critic's memory before each sequence, and the share of the returns that V explains."""
        config = self.config
        obs = self.policy.scale(window.obs)
        begins = None if self._length is None else onpolicy.begins(window, as_team=True)
        value, last, starts = self._values(obs, window, begins)
        mean, scale = self._value_scale()
        real, beyond = value * scale + mean, last * scale + mean
        following = torch.cat([real[1:, :, :1], beyond])
        ended, boundary = (x[..., :1, None] for x in onpolicy.ends(window, as_team=True, mortal=self.team.mortal))
        live = onpolicy.live(window)
        valued = live.any(-1, keepdim=True)
        reward = self.streams.rewards(shared(window), extrinsic(window))  # [T, B, 1, K]
        target = lambda_return(reward, following, ended, boundary, self.streams.gamma, config.td_lambda)
        worth = torch.cat([real[:1, :, :1], following])
        target = self.streams.lasting(target, reward, worth, valued, config.td_lambda)
        explained = onpolicy.explained_variance(target[..., 0], (target - real[:, :, :1])[..., 0], valued)
        if config.normalise_value:
            self._value_moments = onpolicy.learn_scale(self._value_moments, target, valued, config.value_beta)
            mean, scale = self._value_scale()
        gain = ((target - real[:, :, 1:]) * self._strength).sum(-1)
        masked = self.team.mortal or self._length is not None
        batch = Batch(
            obs=tree_map(lambda x: x[:-1], obs),
            action_mask={name: x[:-1] for name, x in window.action_mask.items()},
            action=window.action,
            log_prob=window.record["log_prob"],
            advantage=standardise(gain, live) if config.normalise_advantage else gain,
            target=(target - mean) / scale,
            value=value,
            present=window.alive[:-1] if self.team.mortal else None,
            live=live if masked else None,
            first=None if self._length is None else window.first[:-1],
            begins=None if begins is None else begins[:-1],
        )
        return batch, starts, explained

    def _loss(
        self, batch: Batch, starts: dict[str, Carry] | None, clip_eps: float, entropy_coef: float
    ) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch, and what it is made of [6]: policy, value, baseline, entropy, divergence, clipped
        share.
        """
        config = self.config
        actor_carry, critic_carry = ({}, {}) if starts is None else (starts["actor"], starts["critic"])
        log_prob, entropy = self.policy.evaluate(batch.obs, batch.action_mask, batch.action, batch.first, actor_carry)
        policy_loss, strayed = onpolicy.clipped_policy(log_prob, batch.log_prob, batch.advantage, batch.live, clip_eps)
        value, _ = self.critic(batch.obs, batch.action, batch.present, batch.begins, critic_carry)
        target = batch.target.expand_as(value)
        error = clipped_value_error(value, batch.value, target, config.value_clip_eps, config.huber_delta).mean(-1)
        value_loss = masked_mean(error[..., 0], None if batch.live is None else batch.live.any(-1))
        baseline_loss = masked_mean(error[..., 1:], batch.live)
        spread = masked_mean(entropy, batch.live)
        regression = config.value_coef * (value_loss + config.baseline_coef * baseline_loss)
        loss = policy_loss + regression - entropy_coef * spread
        losses = torch.stack([policy_loss, value_loss, baseline_loss, spread]).detach()
        return loss, torch.cat([losses, strayed])

    # ---------------------------------------------------------------------------------------------------- its parts

    def _strengths(self, progress: float) -> Tensor:
        """Weights of the reward signals [K]."""
        weights = self.streams.weights(progress)
        weights[0] *= self.config.strength
        return weights

    def _values(
        self, obs: dict[str, Tree], window: Window, begins: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Carry]]:
        """Normalised V and baselines of T rows [T, B, 1 + N, K], V of the row after them [1, B, 1, K], and the memory
        before each sequence; notes the memory before the next window.
        """

        def read(part: slice, carry: Carry, acting: bool) -> tuple[Tensor, Carry]:
            seen, action = (tree_map(lambda x: x[part], tree) for tree in (obs, window.action))
            alive = window.alive[part] if self.team.mortal else None
            first = None if begins is None else begins[part]
            return self.critic(seen, action if acting else None, alive, first, carry)

        values, starts, carry = [], [], self._carry
        # Without memory the window is read in as many parts as are learned from: no pass needs more room than those.
        length = self._length or -(-self.horizon // self.config.minibatches)
        for at in range(0, self.horizon, length):
            starts.append(carry)
            value, carry = read(slice(at, min(at + length, self.horizon)), carry, acting=True)
            values.append(value)
        self._carry = carry
        ahead = slice(self.horizon, self.horizon + 1)
        last, _ = read(ahead, {name: x[:, :1] for name, x in carry.items()}, acting=False)
        return torch.cat(values), last, starts

    def _value_scale(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        return ema_scale(self._value_moments) if self.config.normalise_value else (0.0, 1.0)

    # ------------------------------------------------------------------------------------------------------ judging

    def start_judging(self, copies: int) -> Carry:
        return {name: x[:, :1] for name, x in self.critic.start(copies, self.device).items()}

    def judge(self, row: Row, carry: Carry) -> tuple[Tensor, Carry]:
        rows = tree_map(lambda x: x.unsqueeze(0), row)
        alive = rows.alive if self.team.mortal else None
        begins = onpolicy.row_begins(rows, as_team=True)
        value, carry = self.critic(self.policy.scale(rows.obs), None, alive, begins, carry)
        mean, scale = self._value_scale()
        return (value * scale + mean)[0, ..., 0].expand(row.alive.shape), carry

    def load_critic(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self._value_moments = {name: x.to(self.device) for name, x in state["value_moments"].items()}

    # ------------------------------------------------------------------------------------------------------ its state

    def fitting(self) -> Fitting:
        return Fitting(self._optimiser.beside("policy"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "value_moments": self._value_moments,
            "carry": self._carry,
            "shuffle": self._shuffle.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.load_critic(state)
        self._optimiser.load_state_dict(state["optimiser"])
        self._carry = {name: x.to(self.device) for name, x in state["carry"].items()}
        self._shuffle.set_state(state["shuffle"].cpu())
