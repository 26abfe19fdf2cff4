"""COMA: policy gradients of a team with a counterfactual baseline for every agent.

One critic sees what the whole team sees and what the others do, and says for each agent what each of its own choices
would be worth. The gain of an action is its value less the policy's average over the agent's choices, so that an agent
is praised for its own part of what the team earned.

Sources: Foerster et al. 2018 (COMA); the target network and the schedules follow what the field's programs do.
Differs: limits are bootstrapped through; behind the last row of a window, whose actions are not known yet, stands the
average over the agent's own choices while the others' are drawn from the present policy; with several components a
choice, each component has a value and a baseline of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.actor import ActorPolicy
from coterie.algos import onpolicy
from coterie.algos.algorithm import Algorithm, Capabilities, require_alike
from coterie.algos.onpolicy import OnPolicyConfig, Units
from coterie.algos.optimiser import Optimiser
from coterie.algos.student import Fitting, Student
from coterie.algos.target import Target
from coterie.errors import NonFiniteError, UserError
from coterie.math.counterfactual import by_component, counterfactual_advantage
from coterie.math.losses import masked_mean, standardise
from coterie.math.returns import lambda_return
from coterie.math.schedules import Shape as ScheduleShape
from coterie.math.schedules import scheduled
from coterie.metrics import Metric, declare
from coterie.nets.critics import ChoiceCritic
from coterie.nets.joint import JointAction, beside, by_role, last_actions
from coterie.nets.layers import Activation
from coterie.nets.memory import Carry, MemoryKind
from coterie.schema import Count
from coterie.seeds import generator
from coterie.types import TeamSpec, Tree, Window, tree_map

declare(
    Metric("policy/advantage", "", "mean gain of the actions taken over what the policy does on average", None, "mean"),
    Metric("policy/pi_max", "", "mean probability of the likeliest choice", None, "mean"),
    Metric("policy/epsilon", "share", "probability of a uniformly drawn action", None, "last"),
    Metric("value/lr", "", "learning rate of the critic", None, "last"),
    Metric("value/td_error_abs", "reward", "absolute temporal difference on the learned scale", "down", "mean"),
    Metric("value/q_taken_mean", "reward", "mean Q of what was done on the learned scale", None, "mean"),
    Metric("value/target_mean", "reward", "mean target of Q on the learned scale", None, "mean"),
)
_REPORTED = ("loss/policy", "policy/entropy", "policy/advantage", "policy/pi_max", "policy/grad_norm")
_REPORTED += ("loss/value", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")


class COMAConfig(OnPolicyConfig):
    """Settings of COMA."""

    critic: Literal["joint", "state", "joint_state"] = "joint"
    """What the critic reads besides the agent's own observation and the others' actions: the team's joint observation,
    the environment's state, or both of these.
    """
    critic_last_action: bool = False
    """The critic reads what all agents did in the row before."""
    last_action: bool = False
    """The actor reads what its agent did in the row before."""
    horizon: int = Field(26, ge=1, le=100_000)
    """Rows of a window: environment steps of every copy between two updates, restarts counted."""
    sequence: int | None = Field(None, ge=1)
    """Rows of a sequence: windows are cut into such, traces and recurrent networks are trained through one; the whole
    window if not given.
    """
    epochs: int = Field(1, ge=1, le=1000)
    """Passes over a window."""
    batch: int | None = Field(None, ge=1)
    """Sequences of a part, drawn anew for each; null: the window's are dealt out to the parts."""
    critic_chunks: int = Field(1, ge=1, le=100_000)
    """Stretches of time, from the last to the first, each one step of the critic; advantages are those before the
    step. Rows left over go to the last; as many as a sequence has rows, or more: one step a row.
    """
    lr_schedule: ScheduleShape = "constant"
    """How the actor's learning rate goes from the start to `lr_end` times its value."""
    lr_end: float = Field(0.01, gt=0, le=1)
    """Share of the actor's learning rate left at the end of its schedule."""
    critic_lr_schedule: ScheduleShape = "constant"
    """How the critic's learning rate goes from the start to `critic_lr_end` times its value."""
    critic_lr_end: float = Field(0.01, gt=0, le=1)
    """Share of the critic's learning rate left at the end of its schedule."""
    td_lambda: float = Field(0.8, ge=0, le=1)
    """Trace decay of the critic's targets."""
    tau: float = Field(0.01, gt=0, le=1)
    """Share of the critic that its target network takes over with every soft copy."""
    target_every: int | None = Field(200, ge=1)
    """Steps of the critic between two hard copies to its target network; null: a soft copy after each."""
    epsilon: float = Field(0.5, ge=0, le=1)
    """Share of uniform draws among available choices that the policy is mixed with, at the start."""
    epsilon_end: float = Field(0.01, ge=0, le=1)
    """The same at the end of its schedule."""
    epsilon_schedule: ScheduleShape = "linear"
    """How that share goes from `epsilon` to `epsilon_end`."""
    epsilon_steps: Count | None = Field(None, ge=1)
    """Environment steps that the schedule of epsilon takes; the whole run if not given."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus at the start."""
    normalise_advantage: bool = False
    """Advantages are shifted and scaled over the live entries of a part."""
    critic_hidden: tuple[Units, ...] | None = Field((128, 128), min_length=1)
    """Units of the critic's hidden layers; the actor's if not given."""
    activation: Activation = "relu"
    """What stands behind every hidden layer."""
    memory: MemoryKind = "none"
    """Recurrent layer of the actor; the critic has none."""
    agent_id: bool | None = None
    """Whether networks read who the agent is; by default where agents share parameters."""
    team_reward: bool = True
    """Every agent is paid the mean of its team's rewards; otherwise its own and its group's."""

    @property
    def needs_state(self) -> bool:
        """Whether the critic reads an environment state."""
        return "state" in self.critic


class COMA(Algorithm, Student):
    """See the module."""

    Config: ClassVar = COMAConfig
    capabilities: ClassVar = Capabilities(actions=frozenset({"discrete", "multi_discrete"}), images=True)

    def __init__(
        self, team: TeamSpec, config: COMAConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.device = team, config, device
        self.horizon = horizon or config.horizon
        self._length = onpolicy.sequence_length(config.sequence, self.horizon)
        asked = ("minibatches", config.minibatches) if config.batch is None else ("batch", config.batch)
        onpolicy.require_enough(*asked, self.horizon // self._length, copies)
        if config.epsilon_schedule == "exponential" and config.epsilon_end == 0:
            raise UserError("algo.epsilon_end=0 is never reached exponentially: use algo.epsilon_schedule=linear")
        if config.epsilon_schedule == "exponential" and config.epsilon == 0:
            raise UserError("algo.epsilon=0 goes with no exponential schedule: use algo.epsilon_schedule=linear")
        require_alike(team, config.share)
        self._state_name = onpolicy.state_name(team, config.critic) if config.needs_state else None
        reads_id = (config.share != "none" and team.n > 1) if config.agent_id is None else config.agent_id
        draw = generator(seed, "weights")
        self.policy: ActorPolicy = ActorPolicy(
            team,
            config.body,
            config.share,
            reads_id,
            False,
            1.0,
            config.normalise_obs,
            draw,
            device,
            last_action=config.last_action,
            remembers=config.critic_last_action,
        )
        self.policy.epsilon = config.epsilon
        size = team.state_sizes[self._state_name] if self._state_name else 0
        shape = replace(config.critic_body, memory="none")
        self.critic = ChoiceCritic(
            team, "joint" in config.critic, size, config.critic_last_action, shape, config.share, reads_id, draw, device
        ).to(device)
        adam = (config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._actor_step = Optimiser({"policy": self.policy.module}, *adam)
        self._critic_step = Optimiser({"value": self.critic}, *adam)
        self.target = Target(self.critic, config.tau, config.target_every)
        self._joint = JointAction(team, device)
        self._members = onpolicy.group_members(team).to(device)
        self._component, self._parts = components(team, device)
        self._draws = generator(seed, "minibatches")
        self._ahead = generator(seed, "look ahead", device=device)
        self._steps = 0

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, window: Window, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_lr = config.critic_lr or config.lr
        critic_lr *= scheduled(config.critic_lr_schedule, 1.0, config.critic_lr_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        with torch.no_grad():
            pieces = self._cut(window)
        reports = []
        for _ in range(config.epochs):
            for part in self._deal(pieces.copies):
                drawn = pieces if part is None else onpolicy.select(pieces, part)
                reports.append(self._learn(drawn, lr, critic_lr, entropy_coef))
        self.policy.scale.observe(tree_map(lambda x: x[:-1], window.obs), onpolicy.live(window))
        metrics, acted = self._report(torch.stack(reports), window.acted[:-1].sum())
        metrics |= {"policy/lr": lr, "value/lr": critic_lr, "policy/entropy_coef": entropy_coef}
        metrics["policy/epsilon"] = self.policy.epsilon
        self._steps += acted
        way = progress if config.epsilon_steps is None else self._steps / config.epsilon_steps
        # From here on: what is collected next, and learned from after that, is mixed with as much.
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon, config.epsilon_end, way)
        return metrics

    def _learn(self, window: Window, lr: float, critic_lr: float, entropy_coef: float) -> Tensor:
        """Steps of the critic and one of the actor on a window of sequences; a number for each of `_REPORTED`."""
        config = self.config
        obs = self.policy.scale(window.obs)
        live = onpolicy.live(window)
        vectors = self._joint.vectors(window.action)
        last = self._last(vectors, window, live)
        first = None if not config.recurrent else window.first
        log_pi = self.policy.choices(obs, window.action_mask, first, window.carry, last)  # [T + 1, B, N, A]
        pi = log_pi.detach().exp()
        taken = beside(vectors)
        with torch.no_grad():
            joint = self._joint_action(vectors, pi[-1], window)
            before = None if last is None or not config.critic_last_action else self._joint.join(last)
            target = self._targets(window, obs, joint, before, pi, taken)
        valued = window.acted[:-1, :, None].expand_as(live)
        q, critic_report = self._regress(window, obs, joint, before, taken, target, valued, critic_lr)
        gain = counterfactual_advantage(q, pi[:-1], taken, self._component)
        # Nothing of a masked place may reach the loss.
        gain = torch.where(live.unsqueeze(-1), gain, 0.0)
        if config.normalise_advantage:
            gain = standardise(gain, self._counted(live).expand_as(gain))
        log_pi, pi = log_pi[:-1], pi[:-1]
        score = by_component(torch.where(taken > 0, log_pi, 0.0), self._component)
        policy_loss = masked_mean(-(gain * score).sum(-1), live)
        entropy = masked_mean(-(log_pi.exp() * log_pi).sum(-1), live)
        norm = self._actor_step.step(policy_loss - entropy_coef * entropy, {"policy": lr})
        with torch.no_grad():
            likeliest = masked_mean(pi.amax(-1), live)
            mean_gain = masked_mean(self._mean_of_parts(gain), live)
            report = torch.stack([policy_loss.detach(), entropy.detach(), mean_gain, likeliest, norm[0]])
        return torch.cat([report, critic_report])

    def _targets(
        self, window: Window, obs: dict[str, Tree], joint: Tensor, last: Tensor | None, pi: Tensor, taken: Tensor
    ) -> Tensor:
        """TD(lambda) returns [T, B, N] from the target critic at the actions taken; behind the last row, whose actions
        are not known, the average over the agent's choices.
        """
        config = self.config
        q, _ = self.target.module(obs, self._state(window), joint, last, None, {})
        next_value = self._value(q[1:], torch.cat([taken[1:], pi[-1:]]))
        reward = onpolicy.paid(window, self._members, self.team.paid_by_group, config.team_reward)
        terminated, boundary = onpolicy.ends(window, True, self.team.mortal)
        return lambda_return(reward, next_value, terminated, boundary, config.gamma, config.td_lambda)

    def _regress(
        self,
        window: Window,
        obs: dict[str, Tree],
        joint: Tensor,
        last: Tensor | None,
        taken: Tensor,
        target: Tensor,
        valued: Tensor,
        lr: float,
    ) -> tuple[Tensor, Tensor]:
        """Steps of the critic backwards in time; the values [T, B, N, A] before each, and the critic's part of the
        report.
        """
        state = self._state(window)

        def learn(time: slice) -> tuple[Tensor, Tensor]:
            q, _ = self.critic(
                tree_map(lambda x: x[time], obs),
                None if state is None else state[time],
                joint[time],
                None if last is None else last[time],
                None,
                {},
            )
            value = by_component(q * taken[time], self._component)
            distance = value - target[time].unsqueeze(-1)
            loss = masked_mean(self._mean_of_parts(distance.square()), valued[time])
            norm = self._critic_step.step(loss, {"value": lr})
            self.target.follow()
            with torch.no_grad():
                worth = (
                    loss,
                    masked_mean(self._mean_of_parts(distance.abs()), valued[time]),
                    masked_mean(self._mean_of_parts(value), valued[time]),
                    masked_mean(target[time], valued[time]),
                    norm[0],
                )
                return q.detach(), torch.stack(worth)

        return onpolicy.backwards(self._length, self.config.critic_chunks, learn)

    def _report(self, reports: Tensor, acted: Tensor) -> tuple[dict[str, float], int]:
        """Metrics of an update and how many steps it saw; NonFiniteError names what is not a number. The one read by
        the host.
        """
        *mean, steps = torch.cat([reports.mean(0), acted.to(reports.dtype).view(1)]).tolist()
        metrics: dict[str, float] = dict(zip(_REPORTED, mean, strict=True))
        bad = [name for name, value in metrics.items() if not abs(value) < float("inf")]
        if bad:
            part = int((~reports.isfinite().all(1)).nonzero()[0])
            raise NonFiniteError(
                f"team {self.team.name}: {', '.join(bad)} became NaN or infinite in part {part} of the update; "
                "a smaller algo.lr, algo.critic_lr or algo.max_grad_norm often mends this"
            )
        return metrics, int(steps)

    # ---------------------------------------------------------------------------------------------------- its parts

    def _state(self, window: Window) -> Tensor | None:
        """The environment's state [T + 1, B, S], if the critic reads one."""
        return None if self._state_name is None else window.state[self._state_name]

    def _last(self, vectors: dict[str, Tensor], window: Window, live: Tensor) -> dict[str, Tensor] | None:
        """What agents did in the row before, by role [T + 1, B, n, P], if a network reads it."""
        if not self.policy.remembers:
            return None
        done = self._where(vectors, live) if self.team.mortal else vectors
        return last_actions(done, window.first, by_role(self.team, window.carry["last"]))

    def _where(self, vectors: dict[str, Tensor], there: Tensor) -> dict[str, Tensor]:
        """Vectors by role [.., n, P] with zeros where an agent is not there [.., N]."""
        cut = dict(zip(vectors, there.split([role.n for role in self.team.roles], -1), strict=True))
        return {name: torch.where(cut[name].unsqueeze(-1), vector, 0.0) for name, vector in vectors.items()}

    def _joint_action(self, vectors: dict[str, Tensor], pi: Tensor, window: Window) -> Tensor:
        """The joint action of every row [T + 1, B, J]; in the last one drawn from `pi` [B, N, A]."""
        ahead = {}
        for (role, size), part in zip(self._parts.items(), pi.split([r.n for r in self.team.roles], -2), strict=True):
            drawn = []
            for choices in part[..., : sum(size)].split(size, -1):
                noise = torch.empty_like(choices).exponential_(generator=self._ahead)
                pick = (choices / noise).argmax(-1)  # the first of several waiting times to pass
                drawn.append(torch.nn.functional.one_hot(pick, choices.shape[-1]).to(pi.dtype))
            ahead[role] = torch.cat(drawn, -1).unsqueeze(0)
        rows = {name: torch.cat([vector, ahead[name]]) for name, vector in vectors.items()}
        return self._joint.join(self._where(rows, window.alive) if self.team.mortal else rows)

    def _value(self, q: Tensor, weight: Tensor) -> Tensor:
        """Values by choice [.., N, A] weighted and summed, the mean over an agent's components: [.., N]."""
        return self._mean_of_parts(by_component(q * weight, self._component))

    def _counted(self, live: Tensor) -> Tensor:
        """[.., N] as [.., N, K] or [.., N, 1]: which components live agents have."""
        if self._component is None:
            return live.unsqueeze(-1)
        return live.unsqueeze(-1) & self._component.amax(1).bool()

    def _mean_of_parts(self, x: Tensor) -> Tensor:
        """[.., N, K] as the mean over the components that an agent has: [.., N]."""
        if self._component is None:
            return x.squeeze(-1)
        has = self._component.amax(1)  # [N, K]
        return (x * has).sum(-1) / has.sum(-1)

    def _cut(self, window: Window) -> Window:
        """The window as one of shorter sequences [L, S, ..], each with the row that follows it to look ahead."""
        if self._length == self.horizon:
            return window
        return onpolicy.cut(window, self._length, self._carries(window, self._length))

    def _carries(self, window: Window, length: int) -> Carry:
        """The policy's memory before each sequence, [S, N, ..] by name."""
        if not window.carry:
            return {}
        obs = self.policy.scale(window.obs)
        vectors, live = self._joint.vectors(window.action), onpolicy.live(window)
        last = self._last(vectors, window, live)
        carry, found = window.carry, []
        for at in range(0, self.horizon, length):
            found.append(carry)
            time = slice(at, at + length)
            if self.config.recurrent:
                carry = carry | self.policy.unroll(
                    tree_map(lambda x, time=time: x[time], obs),
                    window.first[time],
                    carry,
                    None if last is None else {k: x[time] for k, x in last.items()},
                )
            if self.policy.remembers:
                done = {name: vector[time][-1] for name, vector in vectors.items()}
                carry = carry | {"last": beside(self._where(done, live[time][-1]))}
        return tree_map(lambda *x: torch.cat(x), *found)

    def _deal(self, sequences: int) -> list[Tensor | None]:
        """Which sequences each part learns from; None: from all."""
        dealt = onpolicy.deal(sequences, self.config.minibatches, self.config.batch, self._draws)
        return [part if part is None else part.to(self.device) for part in dealt]

    def fitting(self) -> Fitting:
        return Fitting(self._actor_step.beside("policy"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "actor_optimiser": self._actor_step.state_dict(),
            "critic_optimiser": self._critic_step.state_dict(),
            "draws": self._draws.get_state(),
            "ahead": self._ahead.get_state(),
            "epsilon": self.policy.epsilon,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        self._actor_step.load_state_dict(state["actor_optimiser"])
        self._critic_step.load_state_dict(state["critic_optimiser"])
        self._draws.set_state(state["draws"].cpu())
        self._ahead.set_state(state["ahead"].cpu())
        self.policy.epsilon = state["epsilon"]
        self._steps = state["steps"]


def components(team: TeamSpec, device: torch.device) -> tuple[Tensor | None, dict[str, tuple[int, ...]]]:
    """Which choice of an agent belongs to which of its components, [N, A, K], None if all have one; and the number of
    choices of each component by role.
    """
    parts = {role.name: role.action.choices for role in team.roles}
    most = max(len(choices) for choices in parts.values())
    if most == 1:
        return None, parts
    width = max(sum(choices) for choices in parts.values())
    found = torch.zeros(team.n, width, most, device=device)
    at = 0
    for role in team.roles:
        owner = torch.repeat_interleave(torch.arange(len(parts[role.name])), torch.tensor(parts[role.name]))
        found[at : at + role.n, torch.arange(len(owner)), owner] = 1.0
        at += role.n
    return found, parts
