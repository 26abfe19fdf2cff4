"""Invariants of the contract: the form of a spec, a timestep and a step, and how timesteps follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.checks.environment.rules import CheckAborted, FindingCollector
from coterie.core.observations import shortened
from coterie.core.specs import ActionSpec, EnvSpec, RoleSpec
from coterie.core.types import Step, Timestep
from coterie.envs.contract.traces import named_leaves, to_cpu
from coterie.envs.contract.vector import VectorEnv

TensorForm = tuple[tuple[int, ...], tuple[torch.dtype, ...]]
"""Shape and allowed dtypes of a tensor."""

# --------------------------------------------------------------------------------------------------------------- spec


def check_spec(env: VectorEnv, num_envs: int, findings: FindingCollector) -> None:
    """Checks the spec of an environment.

    Raises:
        CheckAborted: If the environment cannot be tested with this spec.
    """
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        findings.add("spec", f"`spec` is {type(spec).__name__}, expected a coterie.core.specs.EnvSpec")
        raise CheckAborted
    if getattr(env, "num_envs", None) != num_envs:
        message = f"`num_envs` is {getattr(env, 'num_envs', None)}, expected {num_envs} as requested"
        findings.add("spec", message, "num_envs")
    if not isinstance(getattr(env, "device", None), torch.device):
        findings.add("spec", f"`device` is {getattr(env, 'device', None)!r}, expected a torch.device", "device")
    _check_roles(spec, findings)
    allowed = {"global", *spec.groups}
    for name, size in spec.state_sizes.items():
        if name not in allowed or not isinstance(size, int) or size < 1:
            findings.add("spec-states", f"state '{name}' of size {size!r}; the groups are {list(spec.groups)}", name)
    if len(set(spec.metrics)) < len(spec.metrics):
        findings.add("spec-metrics", f"metrics are {list(spec.metrics)}; a name occurs twice")
    limit = spec.episode_limit
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        findings.add("spec-limit", f"episode_limit is {limit!r}")
    if findings.has("spec", "spec-roles", "spec-observations", "spec-actions", "spec-limit"):
        raise CheckAborted


def _check_roles(spec: EnvSpec, findings: FindingCollector) -> None:
    names = [role.name for role in spec.roles]
    if not names or len(set(names)) < len(names) or not all(role.n for role in spec.roles):
        counts = ", ".join(f"{role.name} ({role.n} agents)" for role in spec.roles)
        findings.add("spec-roles", f"the roles are: {counts or 'none'}")
    duplicates = sorted({agent for agent in spec.agents if spec.agents.count(agent) > 1})
    if duplicates:
        findings.add("spec-agents", f"several agents share these names: {', '.join(duplicates)}")
    order = [role.group for role in spec.roles]
    changes = [group for i, group in enumerate(order) if i == 0 or order[i - 1] != group]
    if len(set(changes)) < len(changes):
        findings.add("spec-groups", f"the groups of the roles, in order, are {order}")
    for role in spec.roles:
        _check_spaces(role, findings)


def _check_spaces(role: RoleSpec, findings: FindingCollector) -> None:
    for name, space in sensor_spaces(role.observation_space).items():
        subject = role.name + name
        if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.uint8):
            message = f"role {role.name}: the observation space{name} is {space}"
            findings.add("spec-observations", message, subject)
        elif not (space.low <= space.high).all():  # NaN too
            findings.add("spec-observations", f"role {role.name}: {space} has a low above its high", subject)
    try:
        choices = ActionSpec.of(role.action_space).choices
    except TypeError as error:
        findings.add("spec-actions", f"role {role.name}: {error}", role.name)
        return
    if (not role.action.continuous and not choices) or min(choices, default=1) < 1:
        findings.add("spec-actions", f"role {role.name}: {role.action_space} contains no actions", role.name)


def sensor_spaces(space: spaces.Space) -> dict[str, spaces.Space]:
    """Returns the leaves of an observation space by `['name']`; a space that is no Dict under the empty name."""
    if isinstance(space, spaces.Dict):
        return {f"[{key!r}]{k}": v for key, part in space.spaces.items() for k, v in sensor_spaces(part).items()}
    return {"": space}


# ------------------------------------------------------------------------------------------------- timesteps and steps


class InvariantChecker:
    """Checks the timesteps and steps of one environment in the order in which they are returned.

    Args:
        env: The environment, which the caller resets and steps.
        findings: Collects the violations.
        when: Prefix of all messages.
        num_envs: Number of environments, the first ones; None for all.
    """

    def __init__(self, env: VectorEnv, findings: FindingCollector, when: str = "", *, num_envs: int | None = None):
        self.spec, self.num_envs, self.device = env.spec, num_envs or env.num_envs, env.device
        self.findings = findings
        self._when = when
        self._timestep: Any = None  # the previous one
        self._elapsed = torch.zeros(self.num_envs, dtype=torch.int64)  # steps of the current episodes
        self._step_count = 0
        self.lengths: list[int] = []
        """Lengths of finished episodes, in steps."""

    def check_reset(self, timestep: Any) -> Timestep:
        """Checks the timestep that `reset` returned, and returns a copy on the CPU.

        Raises:
            CheckAborted: If it is malformed.
        """
        timestep = self._check_form("reset()", timestep, Timestep, self._timestep_form())
        self._step_count, self._elapsed = 0, torch.zeros_like(self._elapsed)
        self._check_timestep(timestep, timestep.alive)
        self._forbid(~timestep.acted, "acted", "`acted` is False at the first timestep after reset()")
        self._check_first(timestep, timestep.alive)
        self._timestep = timestep
        return timestep

    def check_step(self, result: Any) -> tuple[Step, Timestep]:
        """Checks what `step` returned, and returns a copy on the CPU.

        Raises:
            CheckAborted: If it is malformed.
        """
        if not (isinstance(result, tuple) and len(result) == 2):
            message = f"step() returned {type(result).__name__}, expected the pair (Step, Timestep)"
            self.findings.add("return-type", message, "step")
            raise CheckAborted
        self._step_count += 1
        step = self._check_form("the step", result[0], Step, self._step_form())
        timestep = self._check_form("the timestep", result[1], Timestep, self._timestep_form())
        before, self._timestep = self._timestep, timestep
        # Agents truncated on their own show their last observation, although they are not alive any more.
        truncated = before.acted[:, None] & before.alive & step.truncated & ~step.terminated
        self._check_timestep(timestep, timestep.alive | truncated)
        self._check_rewards(before, step)
        self._check_episode_ends(before, step, timestep)
        self._check_agent_ends(before, step, timestep)
        return step, timestep

    def check_group_reward(self, step: Step) -> None:
        """Checks the group rewards of a step alone."""
        self._step_count += 1
        self._check_group_reward(step)

    # --------------------------------------------------------------------------------------------------- form

    def _timestep_form(self) -> dict[str, TensorForm]:
        """Form of every tensor of a timestep, by name."""
        b, n, flag, number = self.num_envs, self.spec.n, (torch.bool,), (torch.float32,)
        form: dict[str, TensorForm] = {}
        for role in self.spec.roles:
            for name, space in sensor_spaces(role.observation_space).items():
                assert isinstance(space, spaces.Box)
                dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
                form[f"obs[{role.name!r}]{name}"] = ((b, role.n, *space.shape), (dtype,))
            if role.action.choices:
                form[f"action_mask[{role.name!r}]"] = ((b, role.n, role.action.mask_size), flag)
        form |= {f"state[{name!r}]": ((b, size), number) for name, size in self.spec.state_sizes.items()}
        return form | {"alive": ((b, n), flag), "first": ((b, n), flag), "acted": ((b,), flag)}

    def _step_form(self) -> dict[str, TensorForm]:
        b, n, flag, number = self.num_envs, self.spec.n, (torch.bool,), (torch.float32,)
        form: dict[str, TensorForm] = {
            "reward": ((b, n), number),
            "group_reward": ((b, len(self.spec.groups)), number),
            "terminated": ((b, n), flag),
            "truncated": ((b, n), flag),
            "episode_terminated": ((b,), flag),
            "episode_truncated": ((b,), flag),
        }
        numbers = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
        return form | {f"metrics[{name!r}]": ((b,), numbers) for name in self.spec.metrics}

    def _check_form(self, what: str, value: Any, kind: type[Any], form: Mapping[str, TensorForm]) -> Any:
        """Returns a copy of the dataclass on the CPU if all its tensors have the form that the spec requires."""
        if not isinstance(value, kind):
            message = f"{what} is {type(value).__name__}, expected coterie.core.types.{kind.__name__}"
            self.findings.add("return-type", message, what)
            raise CheckAborted
        found, valid = named_leaves(value), True
        for field in fields(value):
            if field.name in form and field.name not in found:  # a list, a text or None
                self._check_tensor(field.name, getattr(value, field.name), *form[field.name])
                raise CheckAborted
        missing = [name for name in form if name not in found and not name.startswith("action_mask")]
        surplus = [name for name in found if name not in form]
        for problem, names in (("lacks", missing), ("has undeclared", surplus)):
            if names:
                message = f"{self._location()}{what} {problem} {', '.join(names)}"
                self.findings.add("entries", message, problem + what)
                valid = False
        for name in found.keys() & form.keys():
            valid &= self._check_tensor(name, found[name], *form[name])
        if not valid:
            raise CheckAborted
        return to_cpu(value)

    def _check_tensor(self, name: str, leaf: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> bool:
        where = f"{self._location()}{name} is"
        if not isinstance(leaf, Tensor):
            expected = f"a tensor {dtypes[0]} {list(shape)}"
            self.findings.add("type", f"{where} {type(leaf).__name__} ({shortened(leaf)}), expected {expected}", name)
            return False
        if tuple(leaf.shape) != shape:
            self.findings.add("shape", f"{where} {list(leaf.shape)}, expected {list(shape)}", name)
        if leaf.dtype not in dtypes:
            self.findings.add("dtype", f"{where} {leaf.dtype}, expected {dtypes[0]}", name)
        if leaf.device.type != self.device.type:
            self.findings.add("device", f"{where} on {leaf.device}, the environment on {self.device}", name)
        return tuple(leaf.shape) == shape and leaf.dtype in dtypes and leaf.device.type == self.device.type

    # --------------------------------------------------------------------------------------- one timestep, one step

    def _check_timestep(self, timestep: Timestep, observing: Tensor) -> None:
        """Checks values. observing: [B, N] bool, agents whose observations and masks are used."""
        slices = self.spec.role_slices()
        for role in self.spec.roles:
            agents = observing[:, slices[role.name]]
            observed = named_leaves(timestep.obs[role.name], f"obs[{role.name!r}]")
            for sensor, space in sensor_spaces(role.observation_space).items():
                name = f"obs[{role.name!r}]{sensor}"
                self._check_observation(name, observed[name], space=space, agents=agents, role=role)
            if role.name in timestep.action_mask:
                self._check_mask(role, timestep.action_mask[role.name], agents)
        for name, value in timestep.state.items():
            bad = ~value.isfinite().all(-1)
            self._forbid(bad, "non-finite", f"state['{name}'] contains NaN or infinity", f"state {name}")
        if not self.spec.agents_can_die:
            message = "an agent is not alive, and the spec has agents_can_die=False"
            self._forbid(~timestep.alive, "agents-can-die", message)
        dead_first = timestep.first & ~timestep.alive
        self._forbid(dead_first, "first", "`first` is True for an agent that is not alive", "dead")

    def _check_observation(self, name: str, value: Tensor, *, space: Any, agents: Tensor, role: RoleSpec) -> None:
        start = self.spec.role_slices()[role.name].start
        flat = value.flatten(2) if value.ndim > 2 else value[..., None]
        low, high = (torch.as_tensor(bound).flatten() for bound in (space.low, space.high))
        if flat.is_floating_point():
            bad = agents & ~flat.isfinite().all(-1)
            self._forbid(bad, "non-finite", f"{name} contains NaN or infinity", name, start=start)
            tolerance = 1e-5 * (1 + flat.abs())
            out = agents & ~bad & ((flat < low - tolerance) | (flat > high + tolerance)).any(-1)
        else:
            out = agents & ((flat < low) | (flat > high)).any(-1)
        if out.any():
            values = flat[out]
            message = f"{name} has values from {values.min():.4g} to {values.max():.4g}, outside of {space}"
            self._forbid(out, "out-of-bounds", message, name, start=start)

    def _check_mask(self, role: RoleSpec, mask: Tensor, agents: Tensor) -> None:
        start = self.spec.role_slices()[role.name].start
        for i, component in enumerate(mask.split(role.action.choices, dim=-1)):
            message = f"the mask of role {role.name} allows nothing in component {i}"
            self._forbid(agents & ~component.any(-1), "mask-empty", message, role.name, start=start)
        message = f"the mask of role {role.name} has a False for an agent that is not alive"
        self._forbid(~agents & ~mask.all(-1), "mask-dead", message, role.name, start=start)

    def _check_rewards(self, before: Timestep, step: Step) -> None:
        acted, after_final = before.acted, "is not zero in the step after a final timestep"
        for name, value in (("reward", step.reward), ("group_reward", step.group_reward)):
            nonzero = (value != 0).any(-1) & ~acted
            self._forbid((~value.isfinite()).any(-1) & acted, "non-finite", f"{name} contains NaN or infinity", name)
            self._forbid(nonzero, "reset-step-reward", f"{name} {after_final}", name)
        for name, value in step.metrics.items():
            self._forbid(~value.isfinite() & acted, "non-finite", f"metric '{name}' is NaN or infinite", name)
            self._forbid((value != 0) & ~acted, "reset-step-reward", f"metric '{name}' {after_final}", name)
        dead = acted[:, None] & ~before.alive
        self._forbid(dead & (step.reward != 0), "dead-reward", "an agent that is not alive gets a reward")
        self._forbid(dead & (step.terminated | step.truncated), "dead-end", "an agent that is not alive ends again")
        self._check_group_reward(step)

    def _check_group_reward(self, step: Step) -> None:
        if not self.spec.has_group_reward:
            nonzero = (step.group_reward != 0).any(-1)
            message = "group_reward is not zero, and the spec has has_group_reward=False"
            self._forbid(nonzero, "group-reward", message)

    # ---------------------------------------------------------------------------------------- consecutive timesteps

    def _check_episode_ends(self, before: Timestep, step: Step, timestep: Timestep) -> None:
        acted, ended = before.acted, step.episode_terminated | step.episode_truncated
        both = step.episode_terminated & step.episode_truncated
        rule = "terminated-and-truncated"
        self._forbid(both, rule, "an episode is terminated and truncated in the same step", "episode")
        both = step.terminated & step.truncated
        self._forbid(both, rule, "an agent is terminated and truncated in the same step", "agent")
        agent_ended = step.terminated | step.truncated
        reset_step_end = ~acted & (ended | agent_ended.any(-1))
        self._forbid(reset_step_end, "reset-step-end", "an end is reported in the step after a final timestep")
        message = "an episode ended, and `acted` is True at the next timestep"
        self._forbid(acted & ended & timestep.acted, "acted", message)
        message = "`acted` is False, and no episode ended"
        self._forbid(acted & ~ended & ~timestep.acted, "acted", message, "surplus")
        message = "`acted` is False at the first timestep of an episode"
        self._forbid(~acted & ~timestep.acted, "acted", message, "twice")
        in_ended = (acted & ended)[:, None] & before.alive
        message = "an episode ended, and an agent in it did not"
        self._forbid(in_ended & ~agent_ended, "episode-end-agents", message)
        truncated_only = before.alive.any(-1) & agent_ended.any(-1) & ~step.terminated.any(-1)
        message = "an episode is terminated, and its agents are truncated"
        self._forbid(step.episode_terminated & truncated_only, "end-type", message)
        if not self.spec.agents_can_die:
            wrong = in_ended & step.episode_truncated[:, None] & step.terminated
            self._forbid(wrong, "end-type", "an episode is truncated, and an agent in it terminated", "truncated")
        self._check_limit(acted, ended, step)

    def _check_limit(self, acted: Tensor, ended: Tensor, step: Step) -> None:
        self._elapsed = torch.where(acted, self._elapsed + 1, 0)
        limit = self.spec.episode_limit
        if limit is None:
            message = "an episode is truncated, and the spec has episode_limit=None"
            self._forbid(step.episode_truncated & acted, "episode-limit-undeclared", message)
        else:
            message = f"an episode continues after {limit} steps, its declared limit"
            self._forbid(acted & ~ended & (self._elapsed >= limit), "episode-limit", message)
        self.lengths += self._elapsed[acted & ended].tolist()

    def _check_agent_ends(self, before: Timestep, step: Step, timestep: Timestep) -> None:
        acted = before.acted[:, None]
        episode_ended = (step.episode_terminated | step.episode_truncated)[:, None]
        agent_ended = step.terminated | step.truncated
        running = acted & ~episode_ended & before.alive
        if not self.spec.agents_can_die:
            message = "an agent ended before its episode, and the spec has agents_can_die=False"
            self._forbid(running & agent_ended, "agents-can-die", message, "end")
        message = "an agent ended, and is alive at the next timestep"
        respawned = running & step.terminated & timestep.alive & timestep.first
        self._forbid(running & agent_ended & timestep.alive & ~respawned, "alive-after-end", message)
        message = "an agent is not alive any more, and no end was reported"
        self._forbid(running & ~agent_ended & ~timestep.alive, "end-not-reported", message)
        truncated = acted & episode_ended & before.alive & step.truncated & ~step.terminated
        message = "an agent was truncated with its episode, and is not alive at the final timestep"
        self._forbid(truncated & ~timestep.alive, "final-timestep-alive", message)
        self._check_first(timestep, timestep.alive & (~acted | ~before.alive | respawned))

    def _check_first(self, timestep: Timestep, expected: Tensor) -> None:
        self._forbid(expected & ~timestep.first, "first", "an agent starts, and `first` is False", "missing")
        surplus = timestep.first & timestep.alive & ~expected
        self._forbid(surplus, "first", "`first` is True for an agent that has started before", "surplus")

    # ----------------------------------------------------------------------------------------------------- findings

    def _forbid(self, bad: Tensor, rule: str, message: str, subject: str = "", *, start: int = 0) -> None:
        """Adds a finding if `bad`, [B] or [B, n] for the agents from index `start`, is True anywhere."""
        if not bad.any():
            return
        env_index, *agent = torch.nonzero(bad)[0].tolist()
        name = f", agent {self.spec.agents[start + agent[0]]}" if agent else ""
        where = f"{self._when}step {self._step_count}, environment {env_index}{name}"
        self.findings.add(rule, f"{where}: {message}", subject)

    def _location(self) -> str:
        return f"{self._when}step {self._step_count}: "
