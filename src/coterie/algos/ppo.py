"""PPO, IPPO and MAPPO: clipped policy gradients with a learned value.

PPO is one agent; IPPO gives every agent of a team the same algorithm with a critic on its own observation; MAPPO is
IPPO whose critic sees what the whole team sees. One structural knob, `critic`, tells them apart. With `critic_chunks`
every part of an update trains its critic before its policy, as the trainer did whose settings `mappo/original` has.

Sources: Schulman et al. 2017 (PPO), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO).
Differs: a critic of the team is evaluated once a copy and has an output an agent; advantages are normalised over the
window, not over minibatches; actor and critic are clipped apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.actor import ActorPolicy
from coterie.algos import onpolicy
from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities, Judging, require_alike
from coterie.algos.onpolicy import ClippedConfig
from coterie.algos.optimiser import Optimiser
from coterie.algos.streams import Stream, Streams
from coterie.algos.student import Fitting, Student
from coterie.errors import UserError
from coterie.math.losses import clipped_value_error, masked_mean, standardise, value_error
from coterie.math.returns import gae
from coterie.math.running import Moments, ema_scale, ema_start
from coterie.math.schedules import decayed, scheduled
from coterie.nets.critics import OwnCritic, TeamCritic
from coterie.nets.memory import Carry
from coterie.seeds import generator
from coterie.types import Action, Row, TeamSpec, Tree, Window, record, tree_map


class PPOConfig(ClippedConfig):
    """Settings of PPO, IPPO and MAPPO."""

    critic: Literal["own", "joint", "state", "joint_state"] = "own"
    """What the critic reads: the agent's own observation, the team's joint one, the environment's state, or both of
    these.
    """
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Trace decay of the generalised advantage."""
    batch_sequences: int | None = Field(None, ge=1)
    """With `critic_chunks`: sequences of a part, drawn anew for each; null: the window's are dealt out to the parts."""
    critic_chunks: int | None = Field(None, ge=1, le=100_000)
    """Stretches of time, from the last to the first, each one step of the critic before the one of the policy; targets
    are computed anew for each part, gains are targets less values before the step. Rows left over go to the last
    stretch. null: one step for both at once, on targets that are computed once a window.
    """
    entropy_decay: float | None = Field(None, gt=0, lt=1)
    """Factor of the entropy bonus after every update, down to `entropy_end` times its value; in place of a schedule."""
    target_kl: float | None = Field(None, gt=0)
    """Estimated divergence from the old policy at which an update stops; null: never."""
    memory_size: int = Field(128, ge=1)
    """Units of the recurrent layer."""
    sequence: int | None = Field(None, ge=1)
    """Rows of a sequence: recurrent networks are trained through one, and `critic_chunks` draws and divides them; the
    whole window if not given.
    """
    team_reward: bool = False
    """Every agent is paid the mean of its team's rewards."""

    @property
    def needs_state(self) -> bool:
        """Whether the critic reads an environment state."""
        return "state" in self.critic


@record
@dataclass(frozen=True)
class Batch:
    """What the loss reads: [M, ..] rows, or [L, M, ..] sequences and the memory before them [M, N, H]."""

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: Tensor | None
    action: dict[str, Action]
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    """Lambda-returns on the normalised scale [.., N, K]."""
    value: Tensor
    """Values before the update on the normalised scale [.., N, K]."""
    live: Tensor | None
    """[.., N] bool, entries that the policy learns from; None: all."""
    valued: Tensor | None
    """[.., N] bool, entries that the critic learns from; None: all."""
    first: Tensor | None
    begins: Tensor | None


class PPO(Algorithm, Judging, Student):
    """See the module."""

    Config: ClassVar = PPOConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, streams=True)

    def __init__(
        self,
        team: TeamSpec,
        config: PPOConfig,
        copies: int,
        horizon: int | None,
        seed: int,
        device: torch.device,
        streams: tuple[Stream, ...] = (),
    ) -> None:
        """streams: what the team is rewarded for, what the environment pays first; none: that alone."""
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._central = config.critic != "own"
        self._state_name = onpolicy.state_name(team, config.critic) if config.needs_state else None
        self._recurrent = config.recurrent
        self._apart = config.critic_chunks is not None
        sequences = self._recurrent or self._apart
        self._length = onpolicy.sequence_length(config.sequence, self.horizon) if sequences else None
        self._check(copies)
        self._agent_id = config.share == "all" if config.agent_id is None else config.agent_id
        require_alike(team, config.share)
        draw = generator(seed, "weights")
        self.policy: ActorPolicy = ActorPolicy(
            team,
            config.body,
            config.share,
            self._agent_id,
            config.state_std,
            config.init_std,
            config.normalise_obs,
            draw,
            device,
        )
        self.streams = Streams(streams, config.gamma, device)
        self._strength = self.streams.weights(0.0)
        self.critic = self._build_critic(draw)
        adam = (config.adam_eps, config.weight_decay, config.max_grad_norm)
        policy: dict[str, nn.Module] = {"policy": self.policy.module}
        value: dict[str, nn.Module] = {"value": self.critic}
        self._optimiser = Optimiser(policy if self._apart else policy | value, *adam)
        self._critic_optimiser = Optimiser(value, *adam) if self._apart else self._optimiser
        self._updates = 0
        self._value_moments: Moments = ema_start(len(self.streams), device)
        self._carry = self._critic_carry(copies)  # the critic's memory before the next window
        self._starts: list[Carry] = []  # and before each sequence of the last one
        self._shuffle = generator(seed, "minibatches")
        self._members = onpolicy.group_members(team).to(device)

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        rates = {"policy": lr, "value": lr * (config.critic_lr or config.lr) / config.lr}
        entropy_coef = config.entropy_coef * self._entropy_left(progress)
        self._strength = self.streams.weights(progress)
        learn = self._critic_first if self._apart else self._together
        reports, explained, epochs = learn(window, rates, entropy_coef)
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), onpolicy.live(window))
        self._updates += 1
        return self._report(reports, float(explained), lr, entropy_coef, epochs)

    def _together(self, window: Window, rates: dict[str, float], entropy_coef: float) -> tuple[Tensor, Tensor, int]:
        """Steps of policy and critic at once. A report a minibatch, the explained variance, and the passes made."""
        config = self.config
        with torch.no_grad():
            batch, explained = self._targets(window)
        if not self._recurrent:
            rows = window.acted[:-1].flatten().nonzero().squeeze(-1)
            batch, carries = tree_map(lambda x: x.flatten(0, 1), batch), None
        else:
            with torch.no_grad():
                batch, carries = self._sequences(batch, window)
            rows = torch.arange(batch.log_prob.shape[1], device=self.device)
        reports: list[Tensor] = []
        epochs = 0
        for epoch in range(config.epochs):
            for minibatch, starts in onpolicy.minibatches(batch, carries, rows, config.minibatches, self._shuffle):
                loss, report = self._loss(minibatch, starts, entropy_coef)
                norms = self._optimiser.step(loss, rates)
                reports.append(torch.cat([report, norms.detach()]))
            epochs = epoch + 1
            if self._strayed(reports[-1]):
                break
        return torch.stack(reports), explained, epochs

    def _critic_first(self, window: Window, rates: dict[str, float], entropy_coef: float) -> tuple[Tensor, Tensor, int]:
        """Steps of the critic and then one of the policy, part by part. Returns what `_together` does."""
        config = self.config
        assert self._length is not None
        whole = onpolicy.cut(window, self._length, {})
        reports: list[Tensor] = []
        worth: list[Tensor] = []
        epochs = 0
        for epoch in range(config.epochs):
            for part in onpolicy.deal(whole.copies, config.minibatches, config.batch_sequences, self._shuffle):
                drawn = whole if part is None else onpolicy.select(whole, part.to(self.device))
                report, explained = self._learn(drawn, rates, entropy_coef)
                reports.append(report)
                worth.append(explained)
            epochs = epoch + 1
            if self._strayed(reports[-1]):
                break
        return torch.stack(reports), torch.stack(worth).mean(), epochs

    def _learn(self, window: Window, rates: dict[str, float], entropy_coef: float) -> tuple[Tensor, Tensor]:
        """Targets of a window of sequences, steps of the critic backwards in time, one of the policy; its report, and
        the explained variance before the steps.
        """
        config = self.config
        with torch.no_grad():
            batch, explained = self._targets(window)
            _, scale = self._value_scale()

        def regress(time: slice) -> tuple[Tensor, Tensor]:
            part = tree_map(lambda x: x[time], batch)
            value, _ = self.critic(part.obs, part.state, None, {})
            error = value_error(value, part.target, config.huber_delta)
            loss = masked_mean(error.mean(-1), part.valued)
            norm = self._critic_optimiser.step(config.value_coef * loss, rates)
            return value.detach(), torch.stack([loss.detach(), norm[0]])

        assert config.critic_chunks is not None
        assert batch.live is not None
        value, (value_loss, value_norm) = onpolicy.backwards(len(batch.target), config.critic_chunks, regress)
        gain = torch.where(batch.live, ((batch.target - value) * scale * self._strength).sum(-1), 0.0)
        if config.normalise_advantage:
            gain = standardise(gain, batch.live)
        loss, report = self._policy_loss(replace(batch, advantage=gain), {}, entropy_coef)
        norm = self._optimiser.step(loss, rates)
        return torch.cat([report, torch.stack([value_loss, norm[0], value_norm])]), explained

    def _targets(self, window: Window) -> tuple[Batch, Tensor]:
        """Advantages and lambda-returns from one pass of the critic over T + 1 rows."""
        config = self.config
        obs = self.policy.scale(window.obs)
        state = None if self._state_name is None else window.state[self._state_name]
        begins = onpolicy.begins(window, self._central) if self._recurrent else None
        value = self._values(obs, state, begins)  # [T + 1, B, N, K], normalised
        mean, scale = self._value_scale()
        real = value * scale + mean
        terminated, boundary = onpolicy.ends(window, self._central, self.team.mortal)
        extrinsic = onpolicy.paid(window, self._members, self.team.paid_by_group, config.team_reward)
        reward, live = self.streams.rewards(window, extrinsic), onpolicy.live(window)
        cut, stop = terminated.unsqueeze(-1), boundary.unsqueeze(-1)
        advantage = gae(reward, real[:-1], real[1:], cut, stop, self.streams.gamma, config.gae_lambda)
        target = self.streams.lasting(advantage + real[:-1], reward, real, live, config.gae_lambda)
        advantage = advantage if len(self.streams) == 1 else target - real[:-1]
        valued = window.acted[:-1, :, None].expand_as(live) if self._central else live
        explained = onpolicy.explained_variance(target[..., 0], advantage[..., 0], valued)
        if config.normalise_value:
            self._value_moments = onpolicy.learn_scale(self._value_moments, target, valued, config.value_beta)
            mean, scale = self._value_scale()
        gain = (advantage * self._strength).sum(-1)
        if config.normalise_advantage:
            gain = standardise(gain, live)
        # Rows where nobody acts are left out of minibatches, sequences keep them: these need the masks.
        masked = self.team.mortal or self._length is not None
        batch = Batch(
            obs=tree_map(lambda x: x[:-1], obs),
            action_mask={name: x[:-1] for name, x in window.action_mask.items()},
            state=None if state is None else state[:-1],
            action=window.action,
            log_prob=window.record["log_prob"],
            advantage=gain,
            target=(target - mean) / scale,
            value=value[:-1],
            live=live if masked else None,
            valued=valued if masked else None,
            first=window.first[:-1] if self._recurrent else None,
            begins=None if begins is None else begins[:-1],
        )
        return batch, explained

    def _loss(self, batch: Batch, starts: dict[str, Carry] | None, entropy_coef: float) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch, and [5] what it is made of: as in `_policy_loss`, and the loss of the values."""
        config = self.config
        actor_carry, critic_carry = ({}, {}) if starts is None else (starts["actor"], starts["critic"])
        loss, report = self._policy_loss(batch, actor_carry, entropy_coef)
        value, _ = self.critic(batch.obs, batch.state, batch.begins, critic_carry)
        error = clipped_value_error(value, batch.value, batch.target, config.value_clip_eps, config.huber_delta)
        value_loss = masked_mean(error.mean(-1), batch.valued)
        return loss + config.value_coef * value_loss, torch.cat([report, value_loss.detach().view(1)])

    def _policy_loss(self, batch: Batch, carry: Carry, entropy_coef: float) -> tuple[Tensor, Tensor]:
        """The policy's loss with its bonus, and [4] the loss without it, entropy, divergence, clipped share."""
        log_prob, entropy = self.policy.evaluate(batch.obs, batch.action_mask, batch.action, batch.first, carry)
        policy_loss, strayed = onpolicy.clipped_policy(
            log_prob, batch.log_prob, batch.advantage, batch.live, self.config.clip_eps
        )
        spread = masked_mean(entropy, batch.live)
        loss = policy_loss - entropy_coef * spread
        return loss, torch.cat([torch.stack([policy_loss, spread]).detach(), strayed])

    def _report(
        self, reports: Tensor, explained: float, lr: float, entropy_coef: float, epochs: int
    ) -> dict[str, float]:
        """Metrics of an update; NonFiniteError names what is not a number. The one read by the host."""
        names = ("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "loss/value")
        names += ("policy/grad_norm", "value/grad_norm")
        metrics = onpolicy.means(reports, names, self.team.name)
        metrics |= {"value/explained_variance": explained, "policy/lr": lr}
        return metrics | {"policy/entropy_coef": entropy_coef, "policy/epochs": epochs}

    # ---------------------------------------------------------------------------------------------------- its parts

    def _values(self, obs: dict[str, Tree], state: Tensor | None, begins: Tensor | None) -> Tensor:
        """Normalised values of T + 1 rows; notes the memory before each sequence and before the next window."""
        if begins is None:
            return self.critic(obs, state, None, {})[0]
        assert self._length is not None
        values, self._starts, carry = [], [], self._carry
        for at in [*range(0, self.horizon, self._length), self.horizon]:
            part = slice(at, min(at + self._length, self.horizon) if at < self.horizon else at + 1)
            if at == self.horizon:
                self._carry = carry
            else:
                self._starts.append(carry)
            seen = tree_map(lambda x, part=part: x[part], obs)
            value, carry = self.critic(seen, None if state is None else state[part], begins[part], carry)
            values.append(value)
        return torch.cat(values)

    def _sequences(self, batch: Batch, window: Window) -> tuple[Batch, dict[str, Carry]]:
        """The window cut into sequences [L, S, ..], S = T / L x B, and both networks' memory before each [S, N, H]."""
        length = self._length
        assert length is not None
        carries = {
            "actor": onpolicy.actor_starts(self.policy, batch.obs, window, length),
            "critic": tree_map(lambda *x: torch.cat(x), *self._starts),
        }
        if length == self.horizon:
            return batch, carries
        return onpolicy.sequences(batch, length), carries

    def _entropy_left(self, progress: float) -> float:
        """Share of the entropy bonus that is left."""
        config = self.config
        if config.entropy_decay is not None:
            return decayed(1.0, config.entropy_decay, config.entropy_end, self._updates)
        return scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)

    def _strayed(self, report: Tensor) -> bool:
        """Whether the policy has left the one that collected so far that the update stops."""
        return self.config.target_kl is not None and float(report[2]) > self.config.target_kl

    def _value_scale(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        return ema_scale(self._value_moments) if self.config.normalise_value else (0.0, 1.0)

    # ------------------------------------------------------------------------------------------------------ judging

    def start_judging(self, copies: int) -> Carry:
        return self._critic_carry(copies)

    def judge(self, row: Row, carry: Carry) -> tuple[Tensor, Carry]:
        rows = tree_map(lambda x: x.unsqueeze(0), row)
        state = None if self._state_name is None else rows.state[self._state_name]
        value, carry = self.critic(self.policy.scale(rows.obs), state, onpolicy.row_begins(rows, self._central), carry)
        mean, scale = self._value_scale()
        return (value * scale + mean)[0, ..., 0], carry

    def load_critic(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self._value_moments = {name: x.to(self.device) for name, x in state["value_moments"].items()}

    # -------------------------------------------------------------------------------------------------- construction

    def _check(self, copies: int) -> None:
        """UserError for settings that do not go together."""
        config = self.config
        if not self._apart:
            if config.batch_sequences is not None:
                raise UserError(
                    f"algo.batch_sequences={config.batch_sequences} goes with algo.critic_chunks: set that too, or "
                    "algo.minibatches instead"
                )
            onpolicy.require_minibatches(config.minibatches, self._length, self.horizon, copies)
            return
        if self._recurrent:
            raise UserError(
                f"algo.memory={config.memory} does not go with algo.critic_chunks={config.critic_chunks}, which wants "
                "networks without: leave one of them out"
            )
        assert self._length is not None
        drawn = config.batch_sequences
        asked = ("minibatches", config.minibatches) if drawn is None else ("batch_sequences", drawn)
        onpolicy.require_enough(*asked, self.horizon // self._length, copies)

    def _build_critic(self, draw: torch.Generator) -> OwnCritic | TeamCritic:
        config, team = self.config, self.team
        shape = config.critic_body
        if not self._central:
            return OwnCritic(team, len(self.streams), shape, config.share, self._agent_id, draw).to(self.device)
        size = team.state_sizes[self._state_name] if self._state_name else 0
        return TeamCritic(team, len(self.streams), "joint" in config.critic, size, shape, draw).to(self.device)

    def _critic_carry(self, copies: int) -> Carry:
        carry = self.policy.start(copies)
        return {name: x[:, :1] for name, x in carry.items()} if self._central else carry

    def fitting(self) -> Fitting:
        return Fitting(self._optimiser.beside("policy"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimiser": self._optimiser.state_dict() | self._critic_optimiser.state_dict(),
            "value_moments": self._value_moments,
            "carry": self._carry,
            "shuffle": self._shuffle.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.load_critic(state)
        self._optimiser.load_state_dict(state["optimiser"])
        if self._apart:
            self._critic_optimiser.load_state_dict(state["optimiser"])
        self._carry = {name: x.to(self.device) for name, x in state["carry"].items()}
        self._shuffle.set_state(state["shuffle"].cpu())
        self._updates = state["updates"]
