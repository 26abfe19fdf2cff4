"""Findings of the environment checker, the report, and how to fix a violation of every rule."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A violated rule.

    Attributes:
        severity: `error` (training would be wrong or stop), `warning` or `note`.
        rule: Identifier of the rule, a key of `RULES` or `INTERFACE_RULES`.
        message: What was observed, and where first.
        fix: How to fix it.
    """

    severity: Severity
    rule: str
    message: str
    fix: str


@dataclass(frozen=True)
class Report:
    """Result of the environment checker.

    Attributes:
        name: Name of the environment.
        findings: Violated rules, errors first.
        summary: Properties of the environment by name: spaces, episode lengths, random return, speed.
    """

    name: str
    findings: tuple[Finding, ...]
    summary: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if there are no errors."""
        return not any(finding.severity == "error" for finding in self.findings)

    def render(self, width: int = 110) -> str:
        """Returns the report as plain text with lines of at most `width` characters."""
        lines = [f"{self.name}: {self._verdict()}", ""]
        indent = max((len(name) for name in self.summary), default=0) + 4
        for name, text in self.summary.items():
            lines += textwrap.wrap(f"  {name:<{indent - 2}}{text}", width, subsequent_indent=" " * indent)
        for finding in self.findings:
            lines += ["", f"{finding.severity}: {finding.rule}"]
            lines += textwrap.wrap(finding.message, width, initial_indent="  ", subsequent_indent="  ")
            lines += textwrap.wrap(finding.fix, width, initial_indent="  fix: ", subsequent_indent="       ")
        return "\n".join(lines) + "\n"

    def _verdict(self) -> str:
        counts = {kind: sum(f.severity == kind for f in self.findings) for kind in ("error", "warning", "note")}
        texts = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count]
        return ("passed" if self.ok else "failed") + (f" ({', '.join(texts)})" if texts else "")


@dataclass(frozen=True)
class Rule:
    """Severity of a violation, and how to fix it."""

    severity: Severity
    fix: str


class CheckAborted(Exception):
    """The environment cannot be tested further in this check. The reason has been added to the findings."""


@dataclass
class _Entry:
    message: str
    times: int = 1


class FindingCollector:
    """Collects violations: one finding per rule and subject, with its first message and the number of occurrences."""

    def __init__(self, rules: Mapping[str, Rule]):
        self._rules = rules
        self._entries: dict[tuple[str, str], _Entry] = {}

    def add(self, rule: str, message: str, subject: str = "") -> None:
        """Adds a violation.

        Args:
            rule: Identifier of the violated rule.
            message: What was observed, and where. Only the first message per rule and subject is kept.
            subject: The field or call that violates the rule.
        """
        entry = self._entries.get((rule, subject))
        if entry is None:
            self._entries[rule, subject] = _Entry(message)
        else:
            entry.times += 1

    def has(self, *rules: str) -> bool:
        """True if one of the rules was violated."""
        return any(rule in rules for rule, _ in self._entries)

    def findings(self) -> tuple[Finding, ...]:
        """Returns the findings by severity, then in the order of their first occurrence."""
        found = []
        for (name, _), entry in self._entries.items():
            rule = self._rules[name]
            more = f" (seen {entry.times} times)" if entry.times > 1 else ""
            found.append(Finding(rule.severity, name, entry.message + more, rule.fix))
        return tuple(sorted(found, key=lambda f: ("error", "warning", "note").index(f.severity)))


RULES: dict[str, Rule] = {
    # ------------------------------------------------------------------------------------------------------ calls
    "raises": Rule(
        "error",
        "Call the method on its own to see the full traceback. No method may raise as long as actions obey the masks.",
    ),
    "refused": Rule(
        "error", "The message names what the environment returned and what was expected. Change one to match the other."
    ),
    "return-type": Rule("error", "Return a Timestep from `reset`, and a pair (Step, Timestep) from `step`."),
    "close": Rule("error", "Make `close` safe to call twice: the second call must do nothing."),
    "render": Rule(
        "error", "Return an RGB image, a uint8 array [height, width, 3] whose longer side is `size` pixels."
    ),
    "render-missing": Rule("warning", "Implement `render` to record videos. Training works without it."),
    "render-side-effect": Rule("error", "Do not modify the state or draw random numbers in `render`."),
    # ------------------------------------------------------------------------------------------------------- spec
    "spec": Rule("error", "Set the attributes `spec`, `num_envs` and `device` in `__init__`."),
    "spec-roles": Rule("error", "Give every role a unique name and at least one agent."),
    "spec-agents": Rule("error", "Give every agent a name that is unique across all roles."),
    "spec-groups": Rule("error", "Order `spec.roles` by group, so that each group is one slice of the agent axis."),
    "spec-observations": Rule("error", "Use a Box (float32, or uint8 for images), or a Dict of such Boxes."),
    "channels-first": Rule(
        "warning",
        "Return images as [height, width, channels], or set env.wrappers.channels_last=true, which moves the axis. "
        "Ignore this if the first axis is the height.",
    ),
    "spec-actions": Rule(
        "error", "Use Discrete, MultiDiscrete, MultiBinary, a Box with finite bounds, or a Tuple or Dict of these."
    ),
    "spec-states": Rule(
        "error", "Name each state `global` or after a group, and give its number of features, at least 1."
    ),
    "spec-metrics": Rule("error", "List every metric once in `spec.metrics`."),
    "spec-limit": Rule("error", "Set `spec.episode_limit` to a number of steps, at least 1, or to None for no limit."),
    # ---------------------------------------------------------------------------------------- timesteps and steps
    "entries": Rule("error", "Return exactly the entries that the spec declares, under the same names."),
    "type": Rule("error", "Return a torch.Tensor."),
    "shape": Rule(
        "error",
        "Use the axes [num_envs, agents, features]. Do not squeeze the axis of a single environment or agent.",
    ),
    "dtype": Rule(
        "error", "Convert the tensor: float32 for numbers, bool for flags, the space's dtype for observations."
    ),
    "device": Rule("error", "Create every tensor on `env.device`."),
    "non-finite": Rule(
        "error", "Look for divisions by zero, roots and logarithms. A training run stops at NaN and infinity."
    ),
    "out-of-bounds": Rule("error", "Widen the bounds of the observation space, or clip observations to them."),
    "mask-empty": Rule(
        "error",
        "Allow at least one choice in every component of the action. Give agents that must wait a no-op action.",
    ),
    "mask-dead": Rule("error", "Set the whole mask to True where `alive` is False. The action is ignored there."),
    "agents-can-die": Rule(
        "error", "Set `agents_can_die=True` in the spec, or keep every agent alive at all timesteps."
    ),
    "group-reward": Rule("error", "Set `has_group_reward=True` in the spec. Otherwise learners ignore group rewards."),
    # ---------------------------------------------------------------------------------- episode ends and autoreset
    "terminated-and-truncated": Rule(
        "error", "Set `terminated` if the task is over, otherwise `truncated` if a limit was reached, never both."
    ),
    "acted": Rule("error", "Set `acted` to False exactly at the timestep after the step that ended an episode."),
    "reset-step-reward": Rule(
        "error",
        "Return zero rewards and metrics where the previous timestep was the final one of its episode: this step only "
        "resets the environment.",
    ),
    "reset-step-end": Rule(
        "error",
        "Return no end flags where the previous timestep was the final one of its episode: this step only resets the "
        "environment.",
    ),
    "reset-step-action": Rule(
        "error", "Ignore the action that is passed at the final timestep of an episode: it is arbitrary."
    ),
    "final-timestep-alive": Rule(
        "error",
        "Show agents that were truncated with their episode as alive at the final timestep: value functions bootstrap "
        "from their last observation.",
    ),
    "first": Rule(
        "error",
        "Set `first` to True exactly where an agent starts: for all alive agents at the start of an episode, and when "
        "an agent returns.",
    ),
    "episode-end-agents": Rule(
        "error", "When an episode ends, set `terminated` or `truncated` of every agent that was alive."
    ),
    "end-type": Rule(
        "error",
        "End agents the way their episode ends: `terminated` if the task is over, `truncated` if a limit was reached.",
    ),
    "episode-limit": Rule("error", "End every episode after at most `spec.episode_limit` steps."),
    "episode-limit-undeclared": Rule(
        "warning", "If episodes have a fixed maximum length, declare it in `spec.episode_limit` or env.episode_limit=N."
    ),
    "no-episode-end": Rule(
        "warning", "Check with more steps or a lower episode limit: the autoreset could not be tested."
    ),
    # ----------------------------------------------------------------------------------------------- dead agents
    "dead-reward": Rule("error", "Give no reward to agents that are not alive. Use a group reward for delayed credit."),
    "dead-end": Rule("error", "Do not set `terminated` or `truncated` of agents that are not alive: agents end once."),
    "dead-action": Rule("error", "Ignore the actions of agents that are not alive."),
    "alive-after-end": Rule(
        "error",
        "Set `alive` to False at the timestep after an agent ended. Another agent may take its slot one step later.",
    ),
    "end-not-reported": Rule("error", "Set `terminated` or `truncated` at the step after which an agent is not alive."),
    # ------------------------------------------------------------------------------------------- seeds and state
    "determinism": Rule(
        "error",
        "Draw all randomness from generators seeded with the environment's seed. Look for sets, clocks and threads.",
    ),
    "seed-ignored": Rule(
        "warning", "Seed the random generators with `seed`. Ignore this if the environment is deterministic."
    ),
    "envs-identical": Rule(
        "warning", "Draw random numbers for every environment: now all of them play the same episode."
    ),
    "envs-not-independent": Rule(
        "warning",
        "Make the transition of an environment depend on its own state and action only. Look for reductions and "
        "indexing over the wrong axis.",
    ),
    "reset-repeats": Rule(
        "warning", "Do not seed the generators in `reset()` without a seed: it would replay the same episodes."
    ),
    "reset-seed": Rule("error", "In `reset(seed)`, seed every generator and clear all state of earlier episodes."),
    "global-rng": Rule("error", "Use a generator of the environment's own instead of the library's global generator."),
    "output-reused": Rule(
        "error", "Return new tensors or clones: writing into returned tensors changes data stored for training."
    ),
    "action-modified": Rule("error", "Clone the action before changing it: it is stored for training."),
    "action-clipping": Rule(
        "error", "Scale actions with `coterie.core.specs.to_bounds`, which clips them to [-1, 1] first."
    ),
    "state-types": Rule(
        "error", "Return only dictionaries, lists, tensors, numbers, strings, booleans and None from `state_dict`."
    ),
    "resume": Rule(
        "error",
        "Put everything that the future depends on into `state_dict`, generators included, or set "
        "`exact_resume=False` in the spec.",
    ),
    # ------------------------------------------------------------------------------------------------------ speed
    "slow": Rule(
        "warning", "Step all environments at once with tensor operations, profile a step, or use worker processes."
    ),
}
