"""Built-in worlds as pure functions of state, action and noise, and the environment that runs a batch of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.config.samplers import Sampler
from coterie.core.seeds import generator, restore
from coterie.core.specs import EnvSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.captured import CapturableEnv
from coterie.envs.contract.parameters import Parameter, RandomizableEnv, samplers_within_ranges
from coterie.envs.worlds.episode_starts import EpisodeStarts
from coterie.kernels import native, switch
from coterie.ranks.ranks import ONE, Ranks

State = dict[str, Tensor]
"""The state of a batch of environments: tensors [B, ...] by name."""


@dataclass(frozen=True)
class Observation:
    """Observations, masks and states of all agents in a state of the world.

    Attributes:
        obs: by role [B, n, ...].
        action_mask: by role [B, n, sum A] bool, True for legal actions. No entry if all actions of a role are legal.
        state: by name [B, S], `global` or a group's.
        alive: [B, N] bool, None if all agents are alive.
    """

    obs: dict[str, Tensor]
    action_mask: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    alive: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step. None stands for zeros or False.

    Attributes:
        reward: [B, N], the agents' own rewards.
        group_reward: [B, G], rewards of groups.
        terminated: [B] bool, the task ended.
        agent_terminated: [B, N] bool, the agent died while the episode continues. If it is alive in the next state, its
            slot has begun its next life.
        metrics: [B] by name, or a function that computes them. It is called only when an episode ends.
    """

    reward: Tensor
    group_reward: Tensor | None = None
    terminated: Tensor | None = None
    agent_terminated: Tensor | None = None
    metrics: dict[str, Tensor] | Callable[[], dict[str, Tensor]] = field(default_factory=dict)


Advanced = tuple[State, Outcome, Observation]
"""The next state, the outcome of the step, and the observation of the next state."""


@dataclass(frozen=True)
class SeveralSteps:
    """T steps of a world, prepared for a kernel that also acts.

    Attributes:
        arguments: What the kernel reads and writes, see `coterie.kernels.rollout`.
        results: Returns the state after the steps, and observations [T + 1, B, ..], the first of which is copied from
            the tensors by role [B, n, ..] that it is called with.
        metrics: Returns the metrics [B] of a step by name.
        final: T + 1 flags, True at timesteps that are the last of an episode in every environment.
    """

    arguments: Any
    results: Callable[[dict[str, Tensor]], tuple[State, Observation]]
    metrics: Callable[[int], dict[str, Tensor]]
    final: Sequence[bool]


FusedStep = Callable[[State, dict[str, Action], Tensor | None, State | None], Advanced | None]
"""Called with a state, actions by role, where new episodes start [B] bool or None, and their states or None."""


class World(ABC):
    """A task as pure functions of state, action and noise. Instances hold constants only.

    Attributes:
        spec: description of the environment.
        reset_noise_size: number of uniform numbers in [0, 1) that `reset` needs per environment.
        step_noise_size: number of uniform numbers in [0, 1) that `step` needs per environment.
        terminate_at_limit: episodes terminate at the step limit instead of being truncated.
        parameters: parameters that may vary between environments and episodes, by name. A parameter that varies is an
            entry [B] of the state, which the world reads if it is present.
        apply_parameters: function that adapts an initial state to the varying parameters in it, or None if reading the
            entries is enough.
        fused_step: function that does the work of `step`, of starting new episodes and of `observe` by a kernel, or
            None. It returns None if there is no kernel for the type or the device.
        several_steps: function that prepares steps for a kernel which also acts, or None. Its arguments are the present
            state followed by initial states, and the `SeveralSteps.final` flags: a step from a final timestep leads to
            the next initial state. Only the time limit may end episodes of such a world, agents do not die, and its
            steps need no noise.
        cuda_graphs: False if `reset`, `step` or `observe` read tensors on the host or copy any to the device, so that
            they cannot be captured as part of a CUDA graph.
    """

    spec: EnvSpec
    reset_noise_size: int
    step_noise_size: int = 0
    terminate_at_limit: bool = False
    parameters: Mapping[str, Parameter] = MappingProxyType({})
    apply_parameters: Callable[[State], State] | None = None
    fused_step: FusedStep | None = None
    several_steps: Callable[[Sequence[State], Sequence[bool]], SeveralSteps] | None = None
    cuda_graphs: bool = True

    @abstractmethod
    def reset(self, noise: Tensor) -> State:
        """Returns initial states.

        Args:
            noise: uniform numbers in [0, 1), [B, reset_noise_size].
        """

    @abstractmethod
    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        """Advances all environments by one step.

        Args:
            state: the state, which is not modified.
            action: actions by role.
            noise: uniform numbers in [0, 1), [B, step_noise_size], or None if the size is 0.

        Returns:
            The next state and the outcome of the step.
        """

    @abstractmethod
    def observe(self, state: State) -> Observation:
        """Returns what agents observe in `state`."""

    @abstractmethod
    def render(self, state: State, size: int) -> np.ndarray:
        """Draws the state of a single environment.

        Args:
            state: tensors [1, ...] on the CPU.
            size: width in pixels.

        Returns:
            uint8 [H, W, 3].
        """


class WorldEnv(RandomizableEnv, CapturableEnv):
    """A batch of environments of one world: draws the noise, applies the step limit, and resets on the next step.

    Args:
        world: the world.
        num_envs: number of environments.
        seed: seed of the noise and of varying parameters.
        device: device of the state.
        ranks: ranks whose environments are one batch, of which these are a part.
    """

    def __init__(self, world: World, num_envs: int, seed: int, device: torch.device | str = "cpu", ranks: Ranks = ONE):
        self._ranks, self._total_envs = ranks, num_envs * ranks.size
        self.spec, self.num_envs, self.device = world.spec, num_envs, torch.device(device)
        self.world = world
        self._generator, self._parameter_generator = self._make_generators(seed)
        self._samplers: dict[str, Sampler] = {}
        self._on_host = self.device.type == "cpu"
        self._n = self.spec.n
        n, groups = self._n, len(self.spec.groups)
        # Constants, some of which are compared by identity to skip work that has no effect.
        self._all_agents = torch.ones(num_envs, n, dtype=torch.bool, device=self.device)
        self._no_agents = torch.zeros(num_envs, n, dtype=torch.bool, device=self.device)
        self._no_envs = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._all_envs = ~self._no_envs
        self._no_reward = torch.zeros(num_envs, n, device=self.device)
        self._no_group_reward = torch.zeros(num_envs, groups, device=self.device)
        self._no_metrics = {name: torch.zeros(num_envs, device=self.device) for name in self.spec.metrics}
        self._state: State = {}
        self._starts = EpisodeStarts(num_envs, self.device, self.spec.episode_limit, ranks)
        self._final = self._no_envs  # environments whose current timestep is a final one
        self._may_reset = not self._on_host  # False if `_final` is known to be False everywhere
        self._alive = self._all_agents

    def _make_generators(self, seed: int) -> tuple[torch.Generator, torch.Generator]:
        """Returns the generators of the world's noise and of its parameters."""
        name, device = self.spec.name, self.device
        return generator(seed, "env", name, device=device), generator(seed, "parameters", name, device=device)

    def _draw_noise(self, size: int) -> Tensor:
        noise = torch.rand(self._total_envs, size, generator=self._generator, device=self.device)
        return self._ranks.own_envs(noise, self._total_envs)

    def reset(self, seed: int | None = None) -> Timestep:
        if seed is not None:
            self._generator, self._parameter_generator = self._make_generators(seed)
        self._state = self._initial_state()
        self._starts.reset()
        self._final, self._may_reset = self._no_envs, not self._on_host
        return self._timestep(first=self._all_envs)

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        self._starts.clock = self._starts.clock + 1
        if self._final is self._all_envs:  # all environments reset: the result of the world's step would be discarded
            self._state = self._initial_state()
            self._starts.restart()
            step = self._make_step(Outcome(self._no_reward, metrics=self._no_metrics), None)
            return step, self._timestep(first=self._all_envs)
        resetting = self._final if self._may_reset else None
        noise = self._draw_noise(self.world.step_noise_size) if self.world.step_noise_size else None
        initial = None if resetting is None else self._initial_state()
        self._state, outcome, observation = self._advance(action, noise, resetting, initial)
        if resetting is not None:
            self._starts.restart_ended(resetting)
        step = self._make_step(outcome, resetting)
        first = self._no_envs if resetting is None else resetting
        return step, self._timestep(first, observation, outcome.agent_terminated)

    def several_steps(self, steps: int) -> SeveralSteps | None:
        """Prepares steps, which a kernel that also acts has to take: the clock and the noise are those after them.

        Returns None if there is no kernel, or if episodes end at different timesteps.
        """
        if not switch.on or self.world.several_steps is None or not self._on_host or not self._starts.together:
            return None
        if (self._may_reset and self._final is not self._all_envs) or not native.is_supported(*self._state.values()):
            return None
        states, final = [self._state], [self._final is self._all_envs]
        for _ in range(steps):
            self._starts.clock += 1
            if final[-1]:
                states.append(self._initial_state())
                self._starts.restart()
            final.append(self._starts.at_limit() is not None)
        self._final, self._may_reset = self._all_envs if final[-1] else self._no_envs, final[-1]
        if self._may_reset:
            self._starts.end(self._final, by_task=False)
        return self.world.several_steps(states, final)

    def take_several(self, steps: SeveralSteps, now: Timestep) -> tuple[Timestep, Step, list[dict[str, Tensor]]]:
        """Returns the results of steps that `several_steps` has prepared and the kernel has taken.

        Args:
            steps: The steps.
            now: The timestep before them.

        Returns:
            Timesteps [T + 1, B, ..]; outcomes of the steps [T, B, ..] without metrics; and T entries with metrics.
        """
        self._state, observation = steps.results(now.obs)
        count, shape = len(steps.final) - 1, (len(steps.final) - 1, self.num_envs, self._n)
        final = torch.tensor(steps.final).unsqueeze(-1).repeat(1, self.num_envs)
        ended, never = final[1:].clone(), torch.zeros(shape[:2], dtype=torch.bool)
        terminated, truncated = (ended, never) if self.world.terminate_at_limit else (never, ended)
        step = Step(
            reward=steps.arguments.reward,
            group_reward=self._no_group_reward.clone().expand(count, -1, -1),
            terminated=terminated.unsqueeze(-1).expand(shape),
            truncated=truncated.unsqueeze(-1).expand(shape),
            episode_terminated=terminated,
            episode_truncated=truncated,
            metrics={},
        )
        timestep = Timestep(
            obs=observation.obs,
            action_mask={},
            state=observation.state,
            alive=self._all_agents.clone().expand(count + 1, -1, -1),
            first=torch.cat((now.first.unsqueeze(0), final[:-1].unsqueeze(-1).expand(shape))),
            acted=~final,
        )
        return timestep, step, [steps.metrics(t) if steps.final[t + 1] else self._no_metrics for t in range(count)]

    def _advance(
        self, action: dict[str, Action], noise: Tensor | None, resetting: Tensor | None, initial: State | None
    ) -> tuple[State, Outcome, Observation | None]:
        """Steps the world, and starts episodes from `initial` where `resetting` [B]. The kernel observes as well."""
        if switch.on and self.world.fused_step is not None:
            fused = self.world.fused_step(self._state, action, resetting, initial)
            if fused is not None:
                return fused
        state, outcome = self.world.step(self._state, action, noise)
        if resetting is not None and initial is not None:
            state = {name: _where(resetting, initial[name], value) for name, value in state.items()}
        return state, outcome, None

    def parameters(self) -> dict[str, Parameter]:
        return dict(self.world.parameters)

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        samplers_within_ranges(self.spec.name, samplers, self.world.parameters)

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        known = self.world.parameters
        samplers = samplers_within_ranges(self.spec.name, samplers, known)
        self._samplers = dict(sorted((self._samplers | samplers).items()))
        for name in self._samplers:
            if self._state and name not in self._state:  # current episodes keep the default
                self._state[name] = torch.full((self.num_envs,), known[name].value, device=self.device)

    def _initial_state(self) -> State:
        """Draws initial states of all environments, including their parameters."""
        state = self.world.reset(self._draw_noise(self.world.reset_noise_size))
        if not self._samplers:
            return state
        shape = (len(self._samplers), self._total_envs)
        noise = torch.rand(shape, generator=self._parameter_generator, device=self.device)
        noise = noise[:, self._ranks.env_share(self._total_envs)]
        for uniform, (name, sampler) in zip(noise, self._samplers.items(), strict=True):
            value = sampler.draw(uniform)
            value = value.round() if self.world.parameters[name].integer else value
            state[name] = value.to(state[name].dtype) if name in state else value
        return state if self.world.apply_parameters is None else self.world.apply_parameters(state)

    def _make_step(self, outcome: Outcome, resetting: Tensor | None) -> Step:
        """Applies the step limit to an outcome and clears it for resetting environments [B], None for none."""
        terminated, truncated = self._apply_limit(outcome)
        reward, group_reward = outcome.reward, outcome.group_reward
        if resetting is not None:
            reward, acted = reward.masked_fill(resetting[:, None], 0), ~resetting
            terminated, truncated = (x if x is self._no_envs else x & acted for x in (terminated, truncated))
            if group_reward is not None:
                group_reward = group_reward.masked_fill(resetting[:, None], 0)
        self._set_final(terminated, truncated, by_task=outcome.terminated is not None)
        agent_terminated, agent_truncated = self._per_agent(terminated), self._per_agent(truncated)
        if self.spec.agents_can_die:
            if outcome.agent_terminated is not None:
                died = outcome.agent_terminated
                agent_terminated = agent_terminated | (died if resetting is None else died & ~resetting[:, None])
            agent_terminated = agent_terminated & self._alive
            agent_truncated = agent_truncated & self._alive & ~agent_terminated
        return Step(
            reward=reward,
            group_reward=self._no_group_reward if group_reward is None else group_reward,
            terminated=agent_terminated,
            truncated=agent_truncated,
            episode_terminated=terminated,
            episode_truncated=truncated,
            metrics=self._metrics(outcome, resetting),
        )

    def _apply_limit(self, outcome: Outcome) -> tuple[Tensor, Tensor]:
        """Returns which episodes are terminated and which are truncated, [B] each."""
        terminated = self._no_envs if outcome.terminated is None else outcome.terminated
        truncated = self._starts.at_limit()
        if truncated is None:
            return terminated, self._no_envs
        if self.world.terminate_at_limit:
            return terminated | truncated, self._no_envs
        return terminated, truncated if outcome.terminated is None else truncated & ~terminated

    def _per_agent(self, envs: Tensor) -> Tensor:
        """Expands [B] to [B, N]."""
        return self._no_agents if envs is self._no_envs else envs[:, None].expand(self.num_envs, self._n)

    def _set_final(self, terminated: Tensor, truncated: Tensor, *, by_task: bool) -> None:
        """Stores which environments are at a final timestep.

        On the CPU this reads whether there are any on any rank, since noise is drawn for all of them. On an accelerator
        the read would block, so resets are always computed.

        Args:
            terminated: [B] bool.
            truncated: [B] bool.
            by_task: False if episodes end at the time limit only, which is at the same steps on all ranks.
        """
        if terminated is self._no_envs and truncated is self._no_envs:
            self._final, self._may_reset = self._no_envs, not self._on_host
            return
        self._final = terminated if truncated is self._no_envs else terminated | truncated
        self._may_reset = True
        self._starts.end(self._final, by_task=by_task)
        if self._on_host:
            share = self._starts.share_of_ended()
            self._may_reset = share > 0
            if share in (0, 1):
                self._final = self._all_envs if share else self._no_envs

    def _metrics(self, outcome: Outcome, resetting: Tensor | None) -> dict[str, Tensor]:
        if callable(outcome.metrics):
            if self._final is self._no_envs:
                return self._no_metrics
            return {name: value.where(self._final, 0) for name, value in outcome.metrics().items()}
        if resetting is None:
            return outcome.metrics
        return {name: value.masked_fill(resetting, 0) for name, value in outcome.metrics.items()}

    def _timestep(self, first: Tensor, observation: Observation | None = None, died: Tensor | None = None) -> Timestep:
        """Returns the current timestep.

        Args:
            first: environments whose episode starts with it, [B] bool.
            observation: the observation of the current state, if it is known.
            died: agents that the world's step terminated, [B, N] bool; None for none.
        """
        observation = self.world.observe(self._state) if observation is None else observation
        alive = self._all_agents if observation.alive is None else observation.alive
        agent_first = self._per_agent(first)
        if self.spec.agents_can_die:
            starts = agent_first | ~self._alive
            if died is not None:  # the step that ends an episode begins no next life
                starts = starts | (died & ~self._final.unsqueeze(1))
            agent_first = alive & starts
        self._alive = alive
        acted = self._all_envs if self._final is self._no_envs else ~self._final
        return Timestep(
            obs=observation.obs,
            action_mask=observation.action_mask,
            state=observation.state,
            alive=alive,
            first=agent_first,
            acted=acted,
        )

    @property
    def cuda_graphs(self) -> bool:
        return self.world.cuda_graphs

    @property
    def generators(self) -> Sequence[torch.Generator]:
        return self._generator, self._parameter_generator

    @property
    def constants(self) -> object:
        return self._samplers

    def tensors(self) -> Tree:
        return self._state, self._starts.tensors(), self._final, self._alive

    def set_tensors(self, tensors: Tree) -> None:
        self._state, starts, self._final, self._alive = tensors
        self._starts.set_tensors(starts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": dict(self._state),
            "age": self._starts.ages(),
            "final": self._final,
            "alive": self._alive,
            "generator": self._generator.get_state(),
            **({"parameter_generator": self._parameter_generator.get_state()} if self._samplers else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = {name: value.to(self.device) for name, value in state["state"].items()}
        self._starts.load(state["age"])
        self._set_final(state["final"].to(self.device), self._no_envs, by_task=True)
        self._alive = state["alive"].to(self.device)
        restore(self._generator, state["generator"])
        if "parameter_generator" in state:
            restore(self._parameter_generator, state["parameter_generator"])

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        state = {name: value[env_index : env_index + 1].cpu() for name, value in self._state.items()}
        return self.world.render(state, size)

    def close(self) -> None:
        pass


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Returns `yes` where `mask` [B] is True, else `no`; both [B, ...]."""
    return torch.where(mask.view(-1, *[1] * (no.ndim - 1)), yes, no)
