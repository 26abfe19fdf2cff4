"""DDPG, MADDPG, TD3 and MATD3: deterministic actors that climb the gradient of a learned Q.

DDPG judges every agent by what it sees and does itself; MADDPG by what the whole team sees and does (`critic`); TD3 and
MATD3 are the same with twin critics, a delayed actor and smoothed target actions. Choices are learned through the
straight-through Gumbel-softmax.

Sources: Lillicrap et al. 2016 (DDPG), Lowe et al. 2017 (MADDPG), Fujimoto et al. 2018 (TD3), Ackermann et al. 2019
(MATD3), Jang et al. 2017 (Gumbel-softmax).
Differs: with shared parameters a critic of the team is one network with an output an agent, evaluated once a copy;
behaviour and target choices are hard draws, as in the discrete MADDPG of EPyMARL, not relaxed ones; a recurrent critic
remembers what was seen, and judges any action after it; an agent that is dead acts with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos import onpolicy
from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities, require_alike
from coterie.algos.deterministic import DeterministicPolicy, NoiseKind
from coterie.algos.offpolicy import OffPolicyConfig, Units, build_replay, gradient_steps, sequence_error, unlearned
from coterie.algos.optimiser import Optimiser
from coterie.algos.student import Fitting, Student
from coterie.algos.target import Target
from coterie.errors import NonFiniteError
from coterie.math.losses import masked_mean
from coterie.math.returns import n_step_return
from coterie.math.schedules import Shape as ScheduleShape
from coterie.math.schedules import scheduled
from coterie.metrics import Metric, declare
from coterie.nets.critics import OwnActionCritic, TeamActionCritic
from coterie.nets.joint import JointAction
from coterie.nets.memory import Carry
from coterie.replay import Sample
from coterie.schema import Count
from coterie.seeds import generator
from coterie.types import TeamSpec, Tree, Window, tree_map

METRICS = (
    Metric("loss/critic", "", "squared temporal difference, mean over the updates", "down", "mean"),
    Metric("value/td_error_abs", "reward", "absolute temporal difference on the learned scale", "down", "mean"),
    Metric("value/q_taken_mean", "reward", "mean Q of what was done on the learned scale", None, "mean"),
    Metric("value/target_mean", "reward", "mean target of Q on the learned scale", None, "mean"),
    Metric("policy/noise_std", "", "spread of the noise on actions that are numbers; their range is 2", None, "last"),
)  # fmt: skip
declare(*METRICS)

_CRITIC = ("loss/critic", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
_ACTOR = ("loss/policy", "policy/grad_norm")


class DDPGConfig(OffPolicyConfig):
    """Settings of DDPG, MADDPG, TD3 and MATD3."""

    critic: Literal["own", "joint", "state", "joint_state"] = "own"
    """What the critic reads: the agent's own observation and action, or the actions of the whole team with its joint
    observation, with the environment's state, or with both.
    """
    share_critic: bool | None = None
    """Whether a critic of the team is one network with an output an agent (a single one where `team_reward` pays all
    the same) or a network an agent; by default one unless share=none.
    """
    twin_critics: bool = False
    """Two critics, of which targets take the smaller value."""
    policy_delay: int = Field(1, ge=1, le=1000)
    """Steps of the critic for one of the actor and one soft copy to the target networks; hard copies do not wait."""
    target_noise: float = Field(0.0, ge=0, le=2)
    """Spread of the noise on the numbers of target actions."""
    target_noise_clip: float = Field(0.5, gt=0, le=2)
    """Where the noise on target actions is clipped."""
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards that a target adds up before it asks the target critic."""
    others: Literal["replay", "current"] = "replay"
    """Whose actions stand beside an agent's own while its actor learns: the others' in the replay, or what their actors
    would do now.
    """
    next_actions: Literal["target", "online"] = "target"
    """Whose actions targets assume next: the target actors', or the present ones'."""
    temperature: float = Field(1.0, gt=0, le=100)
    """Temperature of the Gumbel-softmax that gradients of choices go through."""
    logit_penalty: float = Field(1e-3, ge=0)
    """Weight of the mean squared logit in the actor's loss."""
    noise: NoiseKind = "gaussian"
    """Noise on actions that are numbers: drawn anew in every row, or pulled back to zero from row to row."""
    noise_std: float = Field(0.1, ge=0, le=2)
    """Spread of the Gaussian noise, or of the increments of the Ornstein-Uhlenbeck noise, at the start; the range of
    actions is 2.
    """
    noise_schedule: ScheduleShape = "constant"
    """How the noise goes to `noise_end` times its spread over the run."""
    noise_end: float = Field(0.1, gt=0, le=1)
    """Share of the noise left at the end of its schedule."""
    noise_theta: float = Field(0.15, gt=0, le=1)
    """Share of the Ornstein-Uhlenbeck noise that is lost in a step."""
    random_steps: Count = Field(0, ge=0)
    """Environment steps at the start in which actions are drawn uniformly."""
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """The critic's learning rate; the actor's if not given."""
    critic_hidden: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers; the actor's if not given."""

    @property
    def needs_state(self) -> bool:
        """Whether the critic reads an environment state."""
        return "state" in self.critic


@dataclass(frozen=True)
class Rows:
    """What networks read of the rows of a batch, [L + 1, S, ..] each: fields of `Window`."""

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: Tensor | None
    first: Tensor
    begins: Tensor
    """Where a critic's memory starts anew."""

    def part(self, start: int, stop: int) -> Rows:
        """The rows [start, stop)."""
        cut = tree_map(lambda x: x[start:stop], [self.obs, self.action_mask, self.state, self.first, self.begins])
        return Rows(*cut)


@dataclass(frozen=True)
class Batch:
    """S sequences of L steps as the losses read them; R of their rows are learned from, the first is the learner's
    `_start`.

    alive: [L + 1, S, N] bool; done: what was done, vectors by role [L, S, n, P]; reward, ended, boundary: [L, S, N],
    futures end where `ended` and are not known beyond a boundary; carry: the acting network's memory before the first
    row, by name [S, N, H]; live, valued: [R, S, N] bool, what actor and critic learn from; weight: [S] importance.
    """

    rows: Rows
    alive: Tensor
    done: dict[str, Tensor]
    reward: Tensor
    ended: Tensor
    boundary: Tensor
    carry: Carry
    live: Tensor
    valued: Tensor
    weight: Tensor


class DDPG(Algorithm, Student):
    """See the module."""

    Config: ClassVar = DDPGConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True)

    def __init__(
        self, team: TeamSpec, config: DDPGConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._rounds = gradient_steps(config, self.horizon, copies)
        self._central = config.critic != "own"
        self._state_name = onpolicy.state_name(team, config.critic) if config.needs_state else None
        require_alike(team, config.share)
        draw = generator(seed, "weights")
        self.policy: DeterministicPolicy = DeterministicPolicy(
            team, config.body, config.share, config.reads_id(team), config.noise, config.noise_theta,
            config.normalise_obs, draw, device,
        )  # fmt: skip
        self.critics = nn.ModuleList(self._build_critic(draw) for _ in range(2 if config.twin_critics else 1))
        settings = (config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._policy_optimiser = Optimiser({"policy": self.policy.net}, *settings)
        self._critic_optimiser = Optimiser({"critic": self.critics}, *settings)
        self._target_net = Target(self.policy.net, config.tau, config.target_every)
        self._target_critics = Target(self.critics, config.tau, config.target_every)
        states = (self._state_name,) if self._state_name else ()
        carry = self.policy.start(copies)
        self.replay = build_replay(config, team, copies, self.horizon, config.n_step, states, carry, seed, device)
        self.notes = (self.replay.description, *unlearned(config, team, self.horizon))
        self._draw = generator(seed, "updates", device=device)
        self._joint = JointAction(team, device)
        self._members = onpolicy.group_members(team).to(device)
        self._start = config.burn_in if config.recurrent else 0  # the first row that is learned from
        self._steps, self._updates = 0, 0
        self._explore(0.0)

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        self.replay.add(window)
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), onpolicy.live(window))
        self._steps += int(window.acted[:-1].sum())
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        reports: list[Tensor] = []
        if self._steps >= config.learning_starts and self.replay.ready(config.batch):
            self.replay.importance_exponent = config.importance_exponent + (1 - config.importance_exponent) * progress
            reports = [self._learn(lr) for _ in range(self._rounds)]
        self._explore(progress)
        return self._report(reports, lr)

    def _learn(self, lr: float) -> Tensor:
        """One gradient step of the critic and, when it is due, one of the actor; what to report of them: `_CRITIC`, and
        if the actor had a step `_ACTOR`.
        """
        config = self.config
        sample = self.replay.sample(config.batch)
        batch = self._batch(sample)
        with torch.no_grad():
            target = self._targets(batch)
        critic_loss, error, taken = self._critic_loss(batch, target)
        rate = lr * (config.critic_lr or config.lr) / config.lr
        norm = self._critic_optimiser.step(critic_loss, {"critic": rate})[0]
        if config.priority_exponent > 0:
            self.replay.reprioritise(sample.index, sequence_error(error.abs(), batch.valued))
        means = [masked_mean(x, batch.valued) for x in (error.abs(), taken, target)]
        report = [critic_loss.detach(), *means, norm]
        self._updates += 1
        if self._updates % config.policy_delay == 0:
            loss, value = self._policy_loss(batch)
            report += [value, self._policy_optimiser.step(loss, {"policy": lr})[0]]
        # Soft copies wait for the actor, as published; hard ones come by their own count of gradient steps.
        if self._updates % config.policy_delay == 0 or config.target_every is not None:
            self._target_net.follow()
            self._target_critics.follow()
        return torch.stack(report)

    def _batch(self, sample: Sample) -> Batch:
        """What the losses read of a sample; masked places are cleaned here."""
        window, config = sample.window, self.config
        stop = window.horizon if config.recurrent else 1  # a transition is learned from in its first row alone
        learned = slice(self._start, stop)
        live = onpolicy.live(window)
        valued = window.acted[:-1, :, None].expand_as(live) if self._central else live
        ended, boundary = onpolicy.ends(window, self._central, self.team.mortal)
        reward = onpolicy.paid(window, self._members, self.team.paid_by_group, config.team_reward)
        done = self._cleaned(self._joint.vectors(window.action), live)
        carry = self.policy.memory(window.carry) or self.policy.memory(self.policy.start(window.copies))
        rows = Rows(
            obs=self.policy.scale(window.obs),
            action_mask=window.action_mask,
            state=None if self._state_name is None else window.state[self._state_name],
            first=window.first,
            begins=onpolicy.begins(window, self._central),
        )
        return Batch(
            rows, window.alive, done, torch.where(valued, reward, 0.0), ended, boundary, carry, live[learned],
            valued[learned], sample.weight,
        )  # fmt: skip

    def _targets(self, batch: Batch) -> Tensor:
        """Returns of n steps [R, S, N] with the target critics' value of the next actions."""
        config = self.config
        start, steps = self._start + 1, len(batch.reward) + 1
        net = self._target_net.module if config.next_actions == "target" else self.policy.net
        out = self._act(net, batch, start, steps)
        smoothing = (config.target_noise, config.target_noise_clip) if config.target_noise else None
        following = self._vectors(out, batch, start, steps, smoothing)
        q = None
        for critic in self._target_critics.module.children():
            found = self._judge(critic, self._read(critic, batch, start, steps), following)
            q = found if q is None else torch.minimum(q, found)
        assert q is not None
        learned = slice(self._start, None)
        target = n_step_return(
            batch.reward[learned], q, batch.ended[learned], batch.boundary[learned], config.gamma, config.n_step
        )
        return target[: len(batch.live)]

    def _critic_loss(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and of the first critic the errors and Q [R, S, N], zero where masked."""
        start, stop = self._start, self._start + len(batch.live)
        done = {role: vector[start:stop] for role, vector in batch.done.items()}
        losses, errors, taken = [], [], []
        for critic in self.critics.children():
            q = self._judge(critic, self._read(critic, batch, start, stop), done)
            error = torch.where(batch.valued, q - target, 0.0)
            losses.append(masked_mean(error.square() * batch.weight[:, None], batch.valued))
            errors.append(error.detach())
            taken.append(q.detach())
        return torch.stack(losses).sum(), errors[0], taken[0]

    def _policy_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A loss whose gradient is that of -Q, each agent's in its own action alone, and the value of -Q."""
        config = self.config
        start, stop = self._start, self._start + len(batch.live)
        out = self._act(self.policy.net, batch, start, stop)
        fresh = self._vectors(out, batch, start, stop, None)
        with torch.no_grad():
            seen = self._read(self.critics[0], batch, start, stop)
        actions = self._joint.join(fresh)
        done = self._joint.join({role: vector[start:stop] for role, vector in batch.done.items()})
        slope, q = self._slope(seen, actions.detach(), done, batch.live)
        count = batch.live.sum().clamp(min=1)
        loss = -(slope * actions).sum() / count
        if config.logit_penalty:
            loss = loss + config.logit_penalty * self._logit_size(out, batch, start, stop)
        return loss, -q / count

    def _slope(self, seen: Tree, actions: Tensor, done: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """Every agent's gradient of its own Q in its own action, side by side [R, S, J], and the sum of these Q.

        actions, done: what all would do now, and did [R, S, J]. The critic's weights get no gradient.
        """
        critic: Any = self.critics[0]
        if not self._central:
            leaf = actions.requires_grad_()
            q = torch.where(live, critic.judge(seen, self._joint.split(leaf))[..., 0], 0.0).sum()
            return torch.autograd.grad(q, leaf)[0], q.detach()
        if self.config.others == "current" and not critic.apart:  # one pass forward, as all judge the same actions
            leaf = actions.requires_grad_()
            q = critic.judge(seen, leaf)[..., 0]
            if critic.together:  # and one backward, as all have the same judgement of them
                (slope,) = torch.autograd.grad(q[..., 0].sum(), leaf)
                slope = torch.where(self._living(live), slope, 0.0)
                return slope, torch.where(live, q.detach(), 0.0).sum()
            q = torch.where(live, q, 0.0).sum((0, 1))
            slope = torch.zeros_like(actions)
            for agent in range(self.team.n):
                (found,) = torch.autograd.grad(q[agent], leaf, retain_graph=agent + 1 < self.team.n)
                slope += torch.where(self._joint.own[agent], found, 0.0)
            return slope, q.detach().sum()
        beside = actions if self.config.others == "current" else done
        leaf = self._joint.replaced(beside, actions).requires_grad_()
        q = torch.where(live, critic.judge(seen, leaf)[..., 0], 0.0).sum()
        (found,) = torch.autograd.grad(q, leaf)
        return torch.where(self._joint.own, found, 0.0).sum(-2), q.detach()

    def _living(self, live: Tensor) -> Tensor:
        """[.., J] bool, the numbers of the joint action that belong to live agents."""
        return live[..., self._joint.owner]

    def _logit_size(self, out: dict[str, Tensor], batch: Batch, start: int, stop: int) -> Tensor:
        """Mean square of the logits of choices that live agents have."""
        total, count = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        masks = {role: mask[start:stop] for role, mask in batch.rows.action_mask.items()}
        for block in self.policy.blocks:
            size = block.roles[0].action.mask_size
            if not size:
                continue
            logits = out[block.name][..., :size]
            counts = batch.live[..., block.start : block.stop, None].expand_as(logits)
            mask = block.mask(masks)
            counts = counts if mask is None else counts & mask
            total = total + torch.where(counts, logits, 0.0).square().sum()
            count = count + counts.sum()
        return total / count.clamp(min=1)

    # ---------------------------------------------------------------------------------------------- networks on rows

    def _act(self, net: nn.Module, batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
        """An actor's outputs by block [.., n, P] in the rows [start, stop)."""
        return self._unroll(lambda rows, carry: net(rows.obs, rows.first, carry), batch, start, stop, batch.carry)

    def _read(self, critic: Any, batch: Batch, start: int, stop: int) -> Tree:
        """What a critic has seen in the rows [start, stop)."""
        kept = batch.carry
        if self._central and not critic.apart:
            kept = {name: value[:, :1] for name, value in kept.items()}
        empty = tree_map(torch.zeros_like, kept)

        def call(rows: Rows, carry: Carry) -> tuple[Tree, Carry]:
            if self._central:
                return critic.read(rows.obs, rows.state, rows.begins, carry)
            return critic.read(rows.obs, rows.first, carry)

        return self._unroll(call, batch, start, stop, empty)

    def _judge(self, critic: Any, seen: Tree, action: dict[str, Tensor]) -> Tensor:
        """Q [.., N] of actions, vectors by role."""
        return critic.judge(seen, self._joint.join(action) if self._central else action)[..., 0]

    def _vectors(
        self, out: dict[str, Tensor], batch: Batch, start: int, stop: int, smoothing: tuple[float, float] | None
    ) -> dict[str, Tensor]:
        """Actions of the rows [start, stop) as vectors by role, from an actor's outputs. To a team the dead do nothing;
        for itself an agent that was cut alone would have gone on.
        """
        alive = batch.alive[start:stop]
        masks = {role: mask[start:stop] for role, mask in batch.rows.action_mask.items()}
        noise = self.policy.draw(alive.shape[:-1], self._draw)
        vectors = self.policy.vectors(out, masks, noise, self.config.temperature, smoothing)
        return self._cleaned(vectors, alive) if self.team.mortal and self._central else vectors

    def _cleaned(self, vectors: dict[str, Tensor], live: Tensor) -> dict[str, Tensor]:
        """Vectors by role [.., n, P] with zeros where `live` [.., N] does not hold."""
        counts = live.split([role.n for role in self.team.roles], -1)
        return {
            role.name: torch.where(count.unsqueeze(-1), vectors[role.name], 0.0)
            for role, count in zip(self.team.roles, counts, strict=True)
        }

    def _unroll(self, call: Callable, batch: Batch, start: int, stop: int, carry: Carry) -> Tree:
        """A network's outputs in the rows [start, stop); what lies before only warms up its memory."""
        if self.config.recurrent and start:
            with torch.no_grad():
                carry = call(batch.rows.part(0, start), carry)[1]
        return call(batch.rows.part(start, stop), carry)[0]

    # -------------------------------------------------------------------------------------------------------- the rest

    def _explore(self, progress: float) -> None:
        """How the policy explores until the next update."""
        config = self.config
        self.policy.noise_std = config.noise_std * scheduled(config.noise_schedule, 1.0, config.noise_end, progress)
        self.policy.uniform = self._steps < config.random_steps

    def _report(self, reports: list[Tensor], lr: float) -> dict[str, float]:
        """Metrics of an update; NonFiniteError names what is not a number. The one read by the host."""
        metrics = {
            "policy/lr": lr,
            "policy/noise_std": self.policy.noise_std,
            "replay/sequences": float(self.replay.starts_held),
            "replay/updates": float(self._updates),
        }
        if not reports:
            return metrics
        actor = [report[len(_CRITIC) :] for report in reports if len(report) > len(_CRITIC)]
        means = [torch.stack([report[: len(_CRITIC)] for report in reports]).mean(0)]
        means += [torch.stack(actor).mean(0)] if actor else []
        measured = dict(zip(_CRITIC + _ACTOR, torch.cat(means).tolist(), strict=False))
        bad = [name for name, value in measured.items() if not abs(value) < float("inf")]
        if bad:
            raise NonFiniteError(
                f"team {self.team.name}: {', '.join(bad)} became NaN or infinite in the {len(reports)} updates up to "
                f"number {self._updates}; a smaller algo.lr or algo.max_grad_norm often mends this"
            )
        return measured | metrics

    def _build_critic(self, draw: torch.Generator) -> OwnActionCritic | TeamActionCritic:
        config, team = self.config, self.team
        shape = replace(config.body, hidden=config.critic_hidden or config.hidden)
        if not self._central:
            return OwnActionCritic(team, 1, shape, config.share, config.reads_id(team), draw).to(self.device)
        size = team.state_sizes[self._state_name] if self._state_name else 0
        joint = "joint" in config.critic
        apart = not (config.share != "none" if config.share_critic is None else config.share_critic)
        return TeamActionCritic(team, 1, joint, size, shape, apart, config.team_reward, draw).to(self.device)

    def fitting(self) -> Fitting:
        return Fitting(self._policy_optimiser.beside("policy"), (self._target_net,))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critics.state_dict(),
            "target_policy": self._target_net.state_dict(),
            "target_critic": self._target_critics.state_dict(),
            "policy_optimiser": self._policy_optimiser.state_dict(),
            "critic_optimiser": self._critic_optimiser.state_dict(),
            "replay": self.replay.state_dict(),
            "draw": self._draw.get_state(),
            "steps": self._steps,
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critics.load_state_dict(state["critic"])
        self._target_net.load_state_dict(state["target_policy"])
        self._target_critics.load_state_dict(state["target_critic"])
        self._policy_optimiser.load_state_dict(state["policy_optimiser"])
        self._critic_optimiser.load_state_dict(state["critic_optimiser"])
        self.replay.load_state_dict(state["replay"])
        self._draw.set_state(state["draw"].cpu())
        self._steps, self._updates = state["steps"], state["updates"]
