"""Q-learning: DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX.

Every agent has a Q of each of its choices; a mixer says what all their choices are worth to the team. Without a mixer
agents learn each for itself (DDQN for one agent, IQL for several). One structural knob, `mixer`, tells them apart.

Sources: van Hasselt et al. 2016 (double Q), Tampuu et al. 2017 (IQL), Sunehag et al. 2018 (VDN), Rashid et al. 2018
(QMIX) and 2020 (weighted QMIX), Wang et al. 2021 (QPLEX), Kapturowski et al. 2019 (stored state and burn-in).
Differs: time limits are bootstrapped across; sequences run on into the next episode, with the memory emptied there,
in place of padding; Adam in place of RMSprop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos import onpolicy
from coterie.algos.algorithm import Algorithm, Capabilities, require_alike
from coterie.algos.offpolicy import (
    OffPolicyConfig,
    Target,
    build_replay,
    cut,
    gradient_steps,
    rows_of,
    sequence_error,
    unlearned,
)
from coterie.algos.optimiser import Optimiser
from coterie.algos.student import Fitting, Student
from coterie.errors import UserError
from coterie.math.losses import masked_mean, value_error
from coterie.math.returns import lambda_return, n_step_return
from coterie.math.running import Moments, count_scale, count_start, count_update
from coterie.math.schedules import Shape as ScheduleShape
from coterie.math.schedules import scheduled
from coterie.metrics import Metric, declare
from coterie.nets.critics import TeamView
from coterie.nets.joint import JointAction
from coterie.nets.memory import Carry
from coterie.nets.mixers import MixerKind, Unrestricted, build_mixer
from coterie.nets.team import join
from coterie.nets.teamvalue import Choices, TeamValue, agents_best, agents_done
from coterie.schema import Count
from coterie.seeds import generator
from coterie.types import Action, TeamSpec, Window, tree_map
from coterie.values import ValuePolicy

declare(
    Metric("loss/td", "", "loss of the temporal difference, mean over the updates", "down", "mean"),
    Metric("value/td_error_abs", "reward", "absolute temporal difference on the learned scale", "down", "mean"),
    Metric("value/q_taken_mean", "reward", "mean Q of what was done on the learned scale", None, "mean"),
    Metric("value/target_mean", "reward", "mean target of Q on the learned scale", None, "mean"),
    Metric("value/grad_norm", "", "norm of the critic's gradient before the clip", None, "mean"),
    Metric("policy/epsilon", "share", "probability of a uniformly drawn action", None, "last"),
    Metric("policy/lr", "", "learning rate of the actor", None, "last"),
)


class QLearningConfig(OffPolicyConfig):
    """Settings of DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX."""

    mixer: MixerKind = "none"
    """What the team's Q is made of: none (every agent for itself), sum (VDN), monotonic (QMIX), duplex (QPLEX)."""
    mixer_reads: Literal["auto", "state", "joint"] = "auto"
    """What a mixer's weights depend on: the environment's state, the team's joint observation; auto: the state if there
    is one.
    """
    mixer_size: int = Field(32, ge=1)
    """Width of the mixing layer."""
    mixer_hidden: int = Field(64, ge=1)
    """Units of the hidden layer that draws up the mixer's weights."""
    weighting: Literal["none", "optimistic", "central"] = "none"
    """Weighted QMIX: errors of joint actions that are not better than thought weigh `weight_rest`, by the optimistic
    (OW) or the centrally weighted (CW) rule.
    """
    weight_rest: float = Field(0.5, gt=0, le=1)
    """Weight of those errors."""
    double_q: bool = True
    """The online network picks the next action and the target network values it."""
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards that a target adds up before it bootstraps."""
    trace_decay: float | None = Field(None, ge=0, le=1)
    """Lambda of TD(lambda) targets along a sequence (of `n_step` rows without a memory); null: n-step targets."""
    last_action: bool = False
    """Networks read what their agent did in the row before; needs a memory."""
    epsilon: float = Field(1.0, ge=0, le=1)
    """Probability of a uniformly drawn action at the start."""
    epsilon_end: float = Field(0.05, ge=0, le=1)
    """The same at the end of its schedule."""
    epsilon_steps: Count = Field(50_000, ge=1)
    """Environment steps from the one to the other."""
    epsilon_schedule: ScheduleShape = "linear"
    """How it gets there."""
    huber_delta: float | None = Field(None, gt=0)
    """Error from which on the loss grows linearly; null: squared everywhere."""
    reward_scale: Literal["none", "spread", "standard"] = "none"
    """Rewards are divided by their running spread (spread), and shifted by their running mean as well (standard), which
    changes what is best where episodes differ in length.
    """

    @property
    def needs_state(self) -> bool:
        """Whether a mixer reads an environment state where there is one."""
        return self.mixer in ("monotonic", "duplex") and self.mixer_reads != "joint"


Q = dict[str, Tensor]
"""Action values by block [rows, S, n, A]."""


@dataclass(frozen=True)
class Batch:
    """What is learned from in one step: all [T, S, N], or [T, S] for a team with a mixer."""

    q: Tensor
    target: Tensor
    live: Tensor
    weight: Tensor
    """What an error weighs in weighted QMIX; 1 [] else."""
    central_error: Tensor
    """Q*'s own errors [T, S] in weighted QMIX, by the measure of the loss; 0 [] else."""


class QLearning(Algorithm, Student):
    """See the module."""

    Config: ClassVar = QLearningConfig
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}), images=True, eval_mode="greedy"
    )

    def __init__(
        self, team: TeamSpec, config: QLearningConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._rounds = gradient_steps(config, self.horizon, copies)
        _refuse(team, config)
        draw = generator(seed, "weights")
        self.policy: ValuePolicy = self._build_policy(draw)
        self.policy.epsilon = config.epsilon
        self._mixes = config.mixer != "none"
        self._state_name = _state_name(team, config)
        self.value = self._build_value(draw)
        parts = {"value": self.value}
        if config.weighting != "none":
            parts["central"] = self._build_central(draw)
        self.module = nn.ModuleDict(parts).to(device)
        self._optimiser = Optimiser({"value": self.module}, config.adam_eps, config.weight_decay, config.max_grad_norm)
        self.target = Target(self.module, config.tau, config.target_every)
        self._far: dict[str, TeamValue] = dict(self.target.module.items())  # pyright: ignore[reportCallIssue]
        self._central: TeamValue | None = parts.get("central")
        states = () if self._state_name is None else (self._state_name,)
        carry = self.policy.start(copies)
        self.replay = build_replay(config, team, copies, self.horizon, config.n_step, states, carry, seed, device)
        self.notes = (self.replay.description, *unlearned(config, team, self.horizon))
        self._members = onpolicy.group_members(team).to(device)
        self._reward_moments: Moments = count_start(1, device)
        self._steps, self._updates = 0, 0

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        self.replay.add(window)
        self._steps += int(window.acted[:-1].sum())
        share = min(1.0, self._steps / config.epsilon_steps)
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon, config.epsilon_end, share)
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), onpolicy.live(window))
        if config.reward_scale != "none":  # once a sample, as it comes, and never again when it is drawn
            reward, live = self._paid(window)
            self._reward_moments = count_update(self._reward_moments, reward.unsqueeze(-1), live)
        metrics = {"policy/epsilon": self.policy.epsilon, "replay/sequences": float(self.replay.starts_held)}
        if self._steps < config.learning_starts or not self.replay.ready(config.batch):
            return metrics
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        self.replay.importance_exponent = scheduled("linear", config.importance_exponent, 1.0, progress)
        reports = [self._learn(lr) for _ in range(self._rounds)]
        names = ("loss/td", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
        metrics |= onpolicy.means(torch.stack(reports), names, self.team.name)
        return metrics | {"policy/lr": lr, "replay/updates": float(self._updates)}

    def _learn(self, lr: float) -> Tensor:
        """One gradient step; returns [5] what it was made of."""
        config = self.config
        drawn = self.replay.sample(config.batch)
        batch = self._batch(drawn.window)
        error = value_error(batch.q, batch.target, config.huber_delta) * batch.weight + batch.central_error
        importance = drawn.weight.view(1, -1, *[1] * (error.ndim - 2))
        loss = masked_mean(error * importance, batch.live)
        norm = self._optimiser.step(loss, {"value": lr})
        self.target.follow()
        self._updates += 1
        with torch.no_grad():
            wrong = (batch.q - batch.target).abs()
            if config.priority_exponent:
                self.replay.reprioritise(drawn.index, sequence_error(wrong, batch.live))
            means = [masked_mean(x, batch.live) for x in (wrong, batch.q, batch.target)]
            return torch.stack([loss, *means, norm[0]]).detach()

    def _batch(self, window: Window) -> Batch:
        """Q of what was done and its targets, along sequences [T + 1, S, ..]."""
        config = self.config
        window, carry, far = self._warmed(window)
        # Without a memory a sequence is learned from at its first row alone; the others serve its target.
        here, later = slice(0, -1 if config.recurrent else 1), slice(1, None)
        if config.recurrent:
            online = self._unrolled(self.value, window, carry["value"])
            now, ahead = _rows(online, here), {name: q[1:].detach() for name, q in online.items()}
        else:
            now = self._unrolled(self.value, rows_of(window, here), carry["value"])
            with torch.no_grad():
                ahead = self._unrolled(self.value, rows_of(window, later), carry["value"])
        with torch.no_grad():
            target = self._target(rows_of(window, later), ahead, window, far)[
                : window.horizon if config.recurrent else 1
            ]
        rows, done = rows_of(window, here), agents_done(self.policy.net, window.action)
        done = {name: pick[: len(target)] for name, pick in done.items()}
        q = self._worth(self.value, now, done, rows)
        live = self._paid(window)[1][: len(target)]
        weight, central_error = q.new_ones(()), q.new_zeros(())
        if self._central is not None:
            central = self._unrolled(self._central, window, carry["central"])
            weight, central_error = self._weighed(_rows(central, here), now, done, rows, q, target)
        return Batch(q, target, live, weight, central_error)

    def _target(self, later: Window, ahead: Q, window: Window, carries: dict[str, Carry]) -> Tensor:
        """Targets of all steps [T, S, N] or [T, S]; later: the rows after the first, ahead: the online Q there."""
        config = self.config
        far = _rows(self._unrolled(self._far["value"], window, carries["value"]), slice(1, None))
        picks = agents_best(self.policy.net, ahead if config.double_q else far, self._masks(later))
        judge = "value" if self._central is None else "central"
        if judge == "central":
            far = _rows(self._unrolled(self._far[judge], window, carries[judge]), slice(1, None))
        next_value = self._worth(self._far[judge], far, picks, later)
        reward, _ = self._paid(window)
        if config.reward_scale != "none":
            mean, spread = count_scale(self._reward_moments)
            reward = (reward - mean if config.reward_scale == "standard" else reward) / spread
        terminated, boundary = onpolicy.ends(window, self._mixes, self.team.mortal)
        if self._mixes:
            terminated, boundary = terminated[..., 0], boundary[..., 0]
        if config.trace_decay is not None:
            return lambda_return(reward, next_value, terminated, boundary, config.gamma, config.trace_decay)
        return n_step_return(reward, next_value, terminated, boundary, config.gamma, config.n_step)

    def _weighed(
        self, central: Q, q: Q, done: Choices, rows: Window, value: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of the errors of Q_tot and errors of Q*, both [T, S]. Source: Rashid et al. 2020, eq. 5 to 7."""
        assert self._central is not None
        best_known = self._worth(self._central, central, done, rows)
        error = value_error(best_known, target, self.config.huber_delta)
        with torch.no_grad():
            if self.config.weighting == "optimistic":
                better = value < target
            else:
                greedy = agents_best(self.policy.net, q, self._masks(rows))
                same = {name: (greedy[name] == done[name]).all(-1) for name in greedy}
                alike = (join(same, self.policy.blocks, -1) | ~rows.alive).all(-1)  # whatever the dead drew
                better = alike | (target > self._worth(self._central, central, greedy, rows))
            return torch.where(better, 1.0, self.config.weight_rest), error

    # ---------------------------------------------------------------------------------------------------- its parts

    def _paid(self, window: Window) -> tuple[Tensor, Tensor]:
        """Rewards and where they count: an agent's [T, S, N], or with a mixer the team's, its groups' once [T, S]."""
        live = onpolicy.live(window)
        if not self._mixes:
            reward = onpolicy.paid(window, self._members, self.team.paid_by_group, self.config.team_reward)
            return reward, live
        reward = window.reward.sum(-1)
        if self.team.paid_by_group:
            reward = reward + window.group_reward.sum(-1)
        return reward, live.any(-1)

    def _warmed(self, window: Window) -> tuple[Window, dict[str, Carry], dict[str, Carry]]:
        """The rows to learn from, and the memories before them: of the online networks and of their targets, by part.

        What is stored is the memory of the network that acted; that of Q* begins empty.
        """
        stored = dict(window.carry) or self.policy.start(window.copies)
        carries = {"value": stored, "central": {name: torch.zeros_like(x) for name, x in stored.items()}}
        if "last" in stored:
            carries["central"]["last"] = stored["last"]
        if not self.config.burn_in or not self.config.recurrent:
            return window, carries, carries
        warm, rest = cut(window, self.config.burn_in)
        online, far = (
            {name: self._led_up(value, warm, carries[name]) for name, value in parts.items()}
            for parts in (cast(dict[str, TeamValue], dict(self.module.items())), self._far)
        )
        return rest, online, far

    @torch.no_grad()
    def _led_up(self, value: TeamValue, warm: Window, carry: Carry) -> Carry:
        """The memory of a network behind the rows that warm it up."""
        after = dict(value(*self.policy.inputs(warm.obs, warm.action, warm.first, carry))[1])
        if self.policy.last_action:
            before = {name: Action(x.discrete[-1]) for name, x in warm.action.items() if x.discrete is not None}
            after["last"] = self.policy.remembered(before)
        return after

    def _unrolled(self, value: TeamValue, window: Window, carry: Carry) -> Q:
        """Q by block of all rows of the window."""
        return value(*self.policy.inputs(window.obs, window.action, window.first, carry))[0]

    def _worth(self, value: TeamValue, q: Q, picks: Choices, rows: Window) -> Tensor:
        """Q of `picks` in these rows to every agent [.., N], or to the team [..]."""
        state = None if self._state_name is None else rows.state[self._state_name]
        obs = self.policy.scale(rows.obs) if self._mixes and state is None else {}
        return value.worth(q, picks, self._masks(rows), rows.alive, obs, state)

    def _masks(self, rows: Window) -> dict[str, Tensor | None]:
        return {block.name: block.mask(rows.action_mask) for block in self.policy.blocks}

    # -------------------------------------------------------------------------------------------------- construction

    def _build_policy(self, draw: torch.Generator) -> ValuePolicy:
        config, team = self.config, self.team
        return ValuePolicy(
            team, config.body, config.share, config.reads_id(team), config.last_action, config.normalise_obs, draw,
            self.device,
        )  # fmt: skip

    def _view(self, draw: torch.Generator) -> TeamView:
        size = self.team.state_sizes[self._state_name] if self._state_name else 0
        return TeamView(self.team, self._state_name is None, size, draw)

    def _build_value(self, draw: torch.Generator) -> TeamValue:
        config, joint = self.config, JointAction(self.team, self.device)
        view = self._view(draw) if config.mixer in ("monotonic", "duplex") else None
        mixer = build_mixer(
            config.mixer, self.team.n, 0 if view is None else view.features, joint.size, config.mixer_size,
            config.mixer_hidden, draw,
        )  # fmt: skip
        return TeamValue(self.policy.net, mixer, view, joint)

    def _build_central(self, draw: torch.Generator) -> TeamValue:
        """Q* of weighted QMIX: agents' networks of its own, and a mixer without restriction."""
        view = self._view(draw)
        mixer = Unrestricted(self.team.n, view.features, 4 * self.config.mixer_hidden, draw)
        return TeamValue(self._build_policy(draw).net, mixer, view, JointAction(self.team, self.device))

    def fitting(self) -> Fitting:
        return Fitting(self._optimiser.beside("value"), (self.target,))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "module": self.module.state_dict(),
            "target": self.target.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "replay": self.replay.state_dict(),
            "reward_moments": self._reward_moments,
            "steps": self._steps,
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.module.load_state_dict(state["module"])
        self.target.load_state_dict(state["target"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.replay.load_state_dict(state["replay"])
        self._reward_moments = {name: x.to(self.device) for name, x in state["reward_moments"].items()}
        self._steps, self._updates = state["steps"], state["updates"]


def _refuse(team: TeamSpec, config: QLearningConfig) -> None:
    """UserError for settings that do not go together."""
    require_alike(team, config.share)
    for name in ("epsilon", "epsilon_end"):
        if config.epsilon_schedule == "exponential" and getattr(config, name) == 0:
            raise UserError(f"algo.{name}=0 goes with no exponential schedule: use algo.epsilon_schedule=linear")
    if config.trace_decay is not None and not config.recurrent and config.n_step == 1:
        raise UserError(
            f"algo.trace_decay={config.trace_decay} changes nothing along one step: give algo.n_step=5, say, "
            "or leave it out"
        )
    if config.team_reward and config.mixer != "none":
        raise UserError(
            f"algo.team_reward=true changes nothing with algo.mixer={config.mixer}, whose team is paid what its agents "
            "earn in all: leave it out"
        )
    if config.last_action and not config.recurrent:
        raise UserError(
            "algo.last_action=true needs a memory, whose sequences show what was done: give algo.memory=gru"
        )
    if config.weighting != "none" and config.mixer != "monotonic":
        raise UserError(f"algo.weighting={config.weighting} belongs to QMIX: give algo.mixer=monotonic")


def _state_name(team: TeamSpec, config: QLearningConfig) -> str | None:
    """The state that a mixer reads; None where it reads joint observations, or nothing."""
    if not config.needs_state or (config.mixer_reads == "auto" and not team.state_sizes):
        return None
    return onpolicy.state_name(team, f"mixer_reads={config.mixer_reads}")


def _rows(q: Q, rows: slice) -> Q:
    return {name: x[rows] for name, x in q.items()}
