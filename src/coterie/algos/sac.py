"""SAC and MASAC: actor-critics that are paid for their entropy, learning from replay.

SAC is one agent, or agents that each learn from their own observation; MASAC gives each of them a critic that reads
what the whole team sees and does. One structural knob, `critic`, tells them apart. Numbers are drawn from Gaussians
squashed by tanh; choices are not drawn, the critic has an output for each and their expectation is exact.

Sources: Haarnoja et al. 2018 (SAC, and its second paper for the learned temperature), Christodoulou 2019 (choices),
Lowe et al. 2017 (a critic that reads what the others do).
Differs: one formula holds for choices, numbers and both at once (`math/squashed.py`); several components of choices are
worth what they add up to; the spread is bounded smoothly; the entropy that is aimed for depends on how many choices are
available; in the target the others' next actions are drawn from their present policies, and in an actor's loss they are
those of the replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import Module

from coterie.algos import onpolicy
from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities, require_alike
from coterie.algos.offpolicy import (
    OffPolicyConfig,
    Units,
    build_replay,
    gradient_steps,
    rows_of,
    sequence_error,
    unlearned,
)
from coterie.algos.optimiser import Optimiser
from coterie.algos.squashed import Draw, SquashedPolicy, Temperature
from coterie.algos.student import Fitting, Student
from coterie.algos.target import Target
from coterie.math.losses import masked_mean
from coterie.math.returns import n_step_return
from coterie.math.running import Moments, count_scale, count_start, count_update
from coterie.math.schedules import scheduled
from coterie.math.squashed import entropy, expected, soft_value
from coterie.metrics import Metric, declare
from coterie.nets.softcritic import TwinCritic
from coterie.replay import Sample
from coterie.schema import Count
from coterie.seeds import generator
from coterie.types import Action, TeamSpec, Window, tree_map

METRICS = (
    Metric("loss/critic", "", "squared temporal difference, mean over the updates", "down", "mean"),
    Metric("loss/temperature", "", "loss of the logarithm of the temperature, mean over the update", None, "mean"),
    Metric("policy/temperature", "", "what a nat of entropy is worth in reward", None, "mean"),
    Metric("value/q_taken_mean", "reward", "mean Q of what was done on the learned scale", None, "mean"),
    Metric("value/td_error_abs", "reward", "absolute temporal difference on the learned scale", "down", "mean"),
)
declare(*METRICS)

REPORT = (
    *("loss/critic", "loss/policy", "loss/temperature", "policy/entropy", "policy/temperature"),
    *("value/q_taken_mean", "value/td_error_abs", "value/grad_norm", "policy/grad_norm"),
)
"""What a gradient step reports."""


class SACConfig(OffPolicyConfig):
    """Settings of SAC and MASAC."""

    critic: Literal["own", "joint", "state", "joint_state"] = "own"
    """What the critics read beside the agent's own observation and action: nothing, or the others' actions and the
    team's joint observation, the environment's state, or both of these.
    """
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards of a target, before the value. Without memory, sequences are as long, and rows further on in them have
    shorter targets.
    """
    batch: int = Field(256, ge=1, le=1_000_000)
    """Sequences in a gradient step; single transitions are sequences of length one."""
    tau: float = Field(0.005, gt=0, le=1)
    """Share of the online critics that the target critics take over with every soft copy."""
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """The critics' learning rate; the actor's if not given."""
    critic_hidden: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critics' hidden layers; the actor's if not given."""
    others: Literal["replay", "current"] = "replay"
    """Whose actions stand beside an agent's own in its actor's loss: what they did, or what their policies do now.
    """
    temperature: float = Field(1.0, gt=0)
    """What a nat of entropy is worth in reward, at the start."""
    learn_temperature: bool = True
    """The temperature moves so that the policy's entropy reaches its target; one for every role."""
    temperature_lr: float | None = Field(None, gt=0, lt=1)
    """The temperature's learning rate; the actor's if not given."""
    target_entropy: float = Field(-1.0, le=0.69)
    """Entropy that is aimed for, in nats for each number in [-1, 1]; uniform ones have 0.69."""
    target_entropy_share: float = Field(0.5, ge=0, le=1)
    """Entropy that is aimed for in choices, as a share of that of choosing uniformly among what is available."""
    reward_scale: Literal["none", "spread", "standard"] = "none"
    """Rewards are divided by their running spread (spread), and shifted by their running mean as well (standard), which
    changes what is best where episodes differ in length. The temperature is then one of scaled rewards.
    """
    random_steps: Count = Field(0, ge=0)
    """Environment steps, restarts counted, before which actions are drawn uniformly instead of from the policy."""

    @property
    def needs_state(self) -> bool:
        """Whether the critics read an environment state."""
        return "state" in self.critic


class SAC(Algorithm, Student):
    """See the module."""

    Config: ClassVar = SACConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, eval_mode="greedy")

    def __init__(
        self, team: TeamSpec, config: SACConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._rounds = gradient_steps(config, self.horizon, copies)
        self._central = config.critic != "own"
        self._state_name = onpolicy.state_name(team, config.critic) if config.needs_state else None
        require_alike(team, config.share)
        draw, agent_id = generator(seed, "weights"), config.reads_id(team)
        self.policy: SquashedPolicy = SquashedPolicy(
            team, config.body, config.share, agent_id, config.normalise_obs, draw, device
        )
        self.critics = self._twins(agent_id, draw)
        self.temperature = Temperature(self.policy.blocks, config.temperature, device)
        safe = (config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._critic_optimiser = Optimiser({"critic": self.critics}, *safe)
        self._policy_optimiser = Optimiser({"policy": self.policy.net}, *safe)
        self._temperature_optimiser = Optimiser({"temperature": self.temperature}, config.adam_eps, 0.0, None)
        self.targets = Target(self.critics, config.tau, config.target_every)
        states = () if self._state_name is None else (self._state_name,)
        carry = self.policy.start(copies)
        self.replay = build_replay(config, team, copies, self.horizon, config.n_step, states, carry, seed, device)
        self.notes = (self.replay.description, *unlearned(config, team, self.horizon))
        self._noise = generator(seed, "update", device=device)
        self._members = onpolicy.group_members(team).to(device)
        numbers = [role.action.continuous for role in team.roles for _ in role.agents]
        self._numbers = torch.tensor(numbers, dtype=torch.float32, device=device)  # [N]
        self._reward_moments: Moments = count_start(1, device)
        self._steps = self._updates = 0
        self.policy.warming = config.random_steps > 0

    def _twins(self, agent_id: bool, draw: torch.Generator) -> TwinCritic:
        config, team = self.config, self.team
        size = team.state_sizes[self._state_name] if self._state_name else 0
        joint = self._central and "joint" in config.critic
        shape = config.body if config.critic_hidden is None else replace(config.body, hidden=config.critic_hidden)
        args = (team, self._central, joint, size, shape, config.share, agent_id, draw, self.device)
        return TwinCritic(*args)

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        self.replay.add(window)
        self._steps += window.horizon * window.copies
        self.policy.warming = self._steps < config.random_steps
        live = onpolicy.live(window)
        if config.reward_scale != "none":  # once a sample, as it comes, and never again when it is drawn
            reward = self._paid(window).unsqueeze(-1)
            self._reward_moments = count_update(self._reward_moments, reward, live)
        metrics: dict[str, float] = {}
        if self._steps >= config.learning_starts and self.replay.ready(config.batch):
            self.replay.importance_exponent = scheduled("linear", config.importance_exponent, 1.0, progress)
            share = scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
            reports = [self._learn(self.replay.sample(config.batch), share) for _ in range(self._rounds)]
            metrics = onpolicy.means(torch.stack(reports), REPORT, self.team.name) | {"policy/lr": config.lr * share}
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), live)
        return metrics | {"replay/sequences": float(self.replay.starts_held), "replay/updates": float(self._updates)}

    def _learn(self, sample: Sample, share: float) -> Tensor:
        """One gradient step of everything; what it reports, in the order of `REPORT`."""
        config, window = self.config, sample.window
        window = replace(window, obs=self.policy.scale(window.obs))
        alpha = self.temperature().detach().exp()
        draw, spread = self._draw(window)
        with torch.no_grad():
            target = self._targets(window, draw, spread, alpha)
        critic_loss, error, report = self._critic_loss(window, target, sample.weight)
        critic_norm = self._critic_optimiser.step(critic_loss, {"critic": share * (config.critic_lr or config.lr)})
        self.critics.requires_grad_(False)
        policy_loss, temperature_loss, reached = self._policy_losses(window, draw, spread, alpha)
        policy_norm = self._policy_optimiser.step(policy_loss, {"policy": share * config.lr})
        self.critics.requires_grad_(True)
        if config.learn_temperature:
            rate = share * (config.temperature_lr or config.lr)
            self._temperature_optimiser.step(temperature_loss, {"temperature": rate})
        self.targets.follow()
        self._updates += 1
        self.replay.reprioritise(sample.index, error)
        losses = torch.stack([critic_loss, policy_loss, temperature_loss, reached, alpha.mean()]).detach()
        return torch.cat([losses, report, critic_norm, policy_norm])

    def _draw(self, window: Window) -> tuple[Draw, Tensor]:
        """The policy on all rows with one action drawn on each, and its entropy [L + 1, S, N]: 0 for a team's dead,
        while an agent that was cut alone would have gone on for itself.
        """
        copies = window.copies
        noise = self.policy.draw((window.horizon + 1, copies), self._noise)
        first = window.first if self.config.recurrent else None
        draw = self.policy(window.obs, window.action_mask, first, window.carry or self.policy.start(copies), noise)
        spread = entropy(draw.prob, draw.log_prob, draw.log_density)
        return draw, torch.where(window.alive, spread, 0.0) if self.team.mortal and self._central else spread

    def _targets(self, window: Window, draw: Draw, spread: Tensor, alpha: Tensor) -> Tensor:
        """What Q is to become [L, S, N]: rewards and entropies of the rows to come, and the Q at their end."""
        config = self.config
        rows = slice(0 if config.recurrent else 1, None)  # memory has to be led up to the row
        q = self._q(self.targets.module, window, rows, tree_map(lambda x: x[rows], draw.action), None).amin(0)
        q = expected(draw.prob[1:], q[-window.horizon :])
        reward = self._paid(window)
        if config.reward_scale != "none":
            mean, scale = count_scale(self._reward_moments)
            reward = (reward - mean if config.reward_scale == "standard" else reward) / scale
        terminated, boundary = onpolicy.ends(window, self._central, self.team.mortal)
        reward = reward + config.gamma * (alpha * spread[1:]).masked_fill(terminated, 0)
        return n_step_return(reward, q, terminated, boundary, config.gamma, config.n_step)

    def _paid(self, window: Window) -> Tensor:
        return onpolicy.paid(window, self._members, self.team.paid_by_group, self.config.team_reward)

    def _critic_loss(self, window: Window, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the error of every sequence [S], and [2] the mean Q of what was done and its mean error."""
        rows = slice(0, -1)
        q = self._q(self.critics, window, rows, window.action, None)
        q = expected(self.critics.taken(window.action), q)  # [2, L, S, N]
        counts = self._counts(window, valued=True)
        loss = masked_mean(0.5 * weight[:, None] * (q - target).square().sum(0), counts)
        with torch.no_grad():
            error = torch.where(counts, (q - target).abs().mean(0), 0.0)
            report = torch.stack([masked_mean(q.mean(0), counts), masked_mean(error, counts)])
            return loss, sequence_error(error, counts), report

    def _policy_losses(
        self, window: Window, draw: Draw, spread: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of policy and temperature, and the mean entropy. An agent's own action is the one just drawn."""
        config, rows = self.config, slice(0, -1)
        fresh = tree_map(lambda x: x[:-1], draw.action)
        others = window.action if config.others == "replay" else tree_map(torch.Tensor.detach, fresh)
        q = self._q(self.critics, window, rows, others, fresh).amin(0)
        counts, spread = self._counts(window, valued=False), spread[:-1]
        loss = -masked_mean(soft_value(q, draw.prob[:-1], spread, alpha), counts)
        reached = spread.detach()
        wanted = config.target_entropy * self._numbers + config.target_entropy_share * draw.most[:-1]
        temperature_loss = masked_mean(self.temperature() * (reached - wanted), counts)
        return loss, temperature_loss, masked_mean(reached, counts)

    def _q(
        self,
        critics: Module,
        window: Window,
        rows: slice,
        action: dict[str, Action],
        fresh: dict[str, Action] | None,
    ) -> Tensor:
        """Q of every choice at some rows by both critics: [2, rows, S, N, A]."""
        seen = rows_of(window, rows)
        state = None if self._state_name is None else seen.state[self._state_name]
        first = seen.first if self.config.recurrent else None
        return critics(seen.obs, state, action, fresh, first, seen.alive if self.team.mortal else None)

    def _counts(self, window: Window, valued: bool) -> Tensor:
        """[L, S, N] bool: what is learned from. A team's critic also learns what the team earns after one's death
        (valued); the first rows of sequences only warm memories up.
        """
        live = onpolicy.live(window)
        if valued and self._central:
            live = window.acted[:-1, :, None].expand_as(live)
        if not self.config.recurrent or not self.config.burn_in:
            return live
        late = torch.arange(window.horizon, device=self.device) >= self.config.burn_in
        return live & late[:, None, None]

    # ------------------------------------------------------------------------------------------------------- its state

    def fitting(self) -> Fitting:
        return Fitting(self._policy_optimiser.beside("policy"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critics.state_dict(),
            "targets": self.targets.state_dict(),
            "temperature": self.temperature.state_dict(),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self._optimisers().items()},
            "replay": self.replay.state_dict(),
            "reward_moments": self._reward_moments,
            "noise": self._noise.get_state(),
            "steps": self._steps,
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critics.load_state_dict(state["critic"])
        self.targets.load_state_dict(state["targets"])
        self.temperature.load_state_dict(state["temperature"])
        for name, optimiser in self._optimisers().items():
            optimiser.load_state_dict(state["optimisers"][name])
        self.replay.load_state_dict(state["replay"])
        self._reward_moments = {name: x.to(self.device) for name, x in state["reward_moments"].items()}
        self._noise.set_state(state["noise"].cpu())
        self._steps, self._updates = state["steps"], state["updates"]
        self.policy.warming = self._steps < self.config.random_steps

    def _optimisers(self) -> dict[str, Optimiser]:
        return {
            "critic": self._critic_optimiser,
            "policy": self._policy_optimiser,
            "temperature": self._temperature_optimiser,
        }
