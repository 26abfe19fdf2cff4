"""Rules of environments with the fix for each violation, the collection of violations, and the report.

The first rules are those of Coterie's interface, `coterie.envs.contract.vector`, the others those of Gymnasium's and
PettingZoo's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.checks.findings import Finding, Severity, as_html, render, worst_first, wrap
from coterie.core.errors import EnvironmentFailedError, LimitExceededError, UserError, message_of
from coterie.core.markup import Markup, element, join, table
from coterie.envs.external.returned import WrongReturn
from coterie.envs.external.spaces_fit import FIXES


@dataclass(frozen=True)
class Rule:
    """Severity of a violation, and how to fix it."""

    severity: Severity
    fix: str


def _rules(errors: dict[str, str], warnings: dict[str, str], notes: dict[str, str] | None = None) -> dict[str, Rule]:
    """Returns rules by name, given the fix for each violation by severity."""
    by_severity: dict[Severity, dict[str, str]] = {"error": errors, "warning": warnings, "note": notes or {}}
    return {name: Rule(severity, fix) for severity, fixes in by_severity.items() for name, fix in fixes.items()}


RULES: dict[str, Rule] = _rules(
    errors={
        # -------------------------------------------------------------------------------------------------------- calls
        "raises": (
            "Call the method on its own to see the full traceback. No method may raise as long as actions obey the "
            "masks."
        ),
        "refused": (
            "The message names what the environment returned and what was expected. Change one to match the other."
        ),
        "return-type": "Return a Timestep from `reset`, and a pair (Step, Timestep) from `step`.",
        "close": "Make `close` safe to call twice: the second call must do nothing.",
        "render": "Return an RGB image, a uint8 array [height, width, 3] whose longer side is `size` pixels.",
        "render-side-effect": "Do not modify the state or draw random numbers in `render`.",
        # --------------------------------------------------------------------------------------------------------- spec
        "spec": "Set the attributes `spec`, `num_envs` and `device` in `__init__`.",
        "spec-roles": "Give every role a unique name and at least one agent.",
        "spec-agents": "Give every agent a name that is unique across all roles.",
        "spec-groups": "Order `spec.roles` by group, so that each group is one slice of the agent axis.",
        "spec-observations": "Use a Box (float32, or uint8 for images), or a Dict of such Boxes.",
        "spec-actions": (
            "Use Discrete, MultiDiscrete, MultiBinary, a Box with finite bounds, or a Tuple or Dict of these."
        ),
        "spec-states": "Name each state `global` or after a group, and give its number of features, at least 1.",
        "spec-metrics": "List every metric once in `spec.metrics`.",
        "spec-limit": "Set `spec.episode_limit` to a number of steps, at least 1, or to None for no limit.",
        # ------------------------------------------------------------------------------------------ timesteps and steps
        "entries": "Return exactly the entries that the spec declares, under the same names.",
        "type": "Return a torch.Tensor.",
        "shape": "Use the axes [num_envs, agents, features]. Do not squeeze the axis of a single environment or agent.",
        "dtype": "Convert the tensor: float32 for numbers, bool for flags, the space's dtype for observations.",
        "device": "Create every tensor on `env.device`.",
        "non-finite": "Look for divisions by zero, roots and logarithms. A training run stops at NaN and infinity.",
        "out-of-bounds": "Widen the bounds of the observation space, or clip observations to them.",
        "mask-empty": (
            "Allow at least one choice in every component of the action. Give agents that must wait a no-op action."
        ),
        "mask-dead": "Set the whole mask to True where `alive` is False. The action is ignored there.",
        "agents-can-die": "Set `agents_can_die=True` in the spec, or keep every agent alive at all timesteps.",
        "group-reward": "Set `has_group_reward=True` in the spec. Otherwise learners ignore group rewards.",
        # ----------------------------------------------------------------------------------- episode ends and autoreset
        "terminated-and-truncated": (
            "Set `terminated` if the task is over, otherwise `truncated` if a limit was reached, never both."
        ),
        "acted": "Set `acted` to False exactly at the timestep after the step that ended an episode.",
        "reset-step-reward": (
            "Return zero rewards and metrics where the previous timestep was the final one of its episode: this step "
            "only resets the environment."
        ),
        "reset-step-end": (
            "Return no end flags where the previous timestep was the final one of its episode: this step only resets "
            "the environment."
        ),
        "reset-step-action": "Ignore the action that is passed at the final timestep of an episode: it is arbitrary.",
        "final-timestep-alive": (
            "Show agents that were truncated with their episode as alive at the final timestep: value functions "
            "bootstrap from their last observation."
        ),
        "first": (
            "Set `first` to True exactly where an agent starts: for all alive agents at the start of an episode, and "
            "when an agent returns."
        ),
        "episode-end-agents": "When an episode ends, set `terminated` or `truncated` of every agent that was alive.",
        "end-type": (
            "End agents the way their episode ends: `terminated` if the task is over, `truncated` if a limit was "
            "reached."
        ),
        "episode-limit": "End every episode after at most `spec.episode_limit` steps.",
        # -------------------------------------------------------------------------------------------------- dead agents
        "dead-reward": "Give no reward to agents that are not alive. Use a group reward for delayed credit.",
        "dead-end": "Do not set `terminated` or `truncated` of agents that are not alive: agents end once.",
        "dead-action": "Ignore the actions of agents that are not alive.",
        "alive-after-end": (
            "Set `alive` to False at the timestep after an agent ended. Another agent may take its slot one step later."
        ),
        "end-not-reported": "Set `terminated` or `truncated` at the step after which an agent is not alive.",
        # ---------------------------------------------------------------------------------------------- seeds and state
        "determinism": (
            "Draw all randomness from generators seeded with the environment's seed. Look for sets, clocks and threads."
        ),
        "reset-seed": "In `reset(seed)`, seed every generator and clear all state of earlier episodes.",
        "global-rng": "Use a generator of the environment's own instead of the library's global generator.",
        "output-reused": (
            "Return new tensors or clones: writing into returned tensors changes data stored for training."
        ),
        "action-modified": "Clone the action before changing it: it is stored for training.",
        "action-clipping": "Scale actions with `coterie.core.specs.to_bounds`, which clips them to [-1, 1] first.",
        "state-types": (
            "Return only dictionaries, lists, tensors, numbers, strings, booleans and None from `state_dict`."
        ),
        "resume": (
            "Put everything that the future depends on into `state_dict`, generators included, or set "
            "`exact_resume=False` in the spec."
        ),
    },
    warnings={
        "render-missing": "Implement `render` to record videos. Training works without it.",
        "channels-first": (
            "Return images as [height, width, channels], or set env.wrappers.channels_last=true, which moves the "
            "axis. Ignore this if the first axis is the height."
        ),
        "episode-limit-undeclared": (
            "If episodes have a fixed maximum length, declare it in `spec.episode_limit` or env.episode_limit=N."
        ),
        "no-episode-end": "Check with more steps or a lower episode limit: the autoreset could not be tested.",
        "seed-ignored": "Seed the random generators with `seed`. Ignore this if the environment is deterministic.",
        "envs-identical": "Draw random numbers for every environment: now all of them play the same episode.",
        "envs-not-independent": (
            "Make the transition of an environment depend on its own state and action only. Look for reductions and "
            "indexing over the wrong axis."
        ),
        "reset-repeats": "Do not seed the generators in `reset()` without a seed: it would replay the same episodes.",
        "slow": "Step all environments at once with tensor operations, profile a step, or use worker processes.",
    },
)
"""Rules of Coterie's interface."""

INTERFACE_RULES: dict[str, Rule] = _rules(
    errors={
        # -------------------------------------------------------------------------------------------------- the factory
        "factory": (
            "Return a gymnasium.Env, a PettingZoo ParallelEnv or AECEnv, or an object with the same methods and "
            "spaces. A factory of a vectorized environment takes num_envs, seed and device."
        ),
        "factory-reuses-env": (
            "Make a new environment in every call: several of them are stepped independently of each other."
        ),
        "shared-state": (
            "Assign everything that changes during an episode to `self` in `reset`, not to the class or the module, "
            "which all environments share."
        ),
        # ------------------------------------------------------------------------------------------------------- spaces
        "space-missing": (
            "Set `observation_space` and `action_space` in `__init__`. With several agents they are methods that take "
            "the name of an agent."
        ),
        "space-type": (
            "Use spaces of `gymnasium.spaces`. Observations and actions: Box, Discrete, MultiDiscrete, MultiBinary, "
            "or a Dict or Tuple of these. Actions have finite bounds and at least one component."
        ),
        "space-changes": "Create spaces once in `__init__`, at their largest size, and pad observations to it.",
        # ---------------------------------------------------------------------------------------------- returned values
        "reset-signature": "Define `def reset(self, seed=None, options=None)`, and seed the random generator there.",
        "reset-return": "Return the pair (observation, info). With several agents both are dictionaries by agent.",
        "step-return": (
            "Return (observation, reward, terminated, truncated, info). Replace `done` by terminated if the task is "
            "over, and by truncated if a limit was reached. With several agents each is a dictionary by agent."
        ),
        "info-type": "Return a dictionary, which may be empty. With several agents return one for each.",
        "observation-type": FIXES["observation-type"],
        "observation-keys": FIXES["observation-keys"],
        "observation-shape": FIXES["observation-shape"],
        "observation-dtype": "Convert the observation to the space's dtype, or use float32 for fractions.",
        "observation-finite": (
            "Look for divisions by zero, roots and logarithms. A training run stops at NaN and infinity."
        ),
        "observation-range": FIXES["observation-range"],
        "reward-type": "Return one number, `float(reward)`. With several agents return one for each.",
        "all-key-mismatch": (
            "Set the flag of every agent, `terminations = {agent: over for agent in self.agents}`, and clear "
            "`self.agents`. '__all__' is RLlib's convention and is not read."
        ),
        "end-flag-type": "Return True or False, `bool(...)`, for every agent. Use False instead of None.",
        "render-output": "Return an RGB image, a uint8 array [height, width, 3], where render_mode is 'rgb_array'.",
        # ------------------------------------------------------------------------------------------------------- agents
        "agents-empty": "Set the current agents in `reset`: `self.agents = list(self.possible_agents)`.",
        "agents-duplicate": "Give every agent a unique name.",
        "agents-unknown": (
            "List all agents that may ever appear in `possible_agents`, or reserve slots with env.max_agents=N."
        ),
        "agents-removed": "Set terminations[agent] or truncations[agent] in the step that removes an agent.",
        "entry-missing": (
            "Return an entry for every agent that acted, and an observation for every agent that continues or is "
            "truncated."
        ),
        # -------------------------------------------------------------------------------------------------------- masks
        "mask-size": "Return one mask entry per choice of the action space, the components one after the other.",
        "mask-values": "Return 1 for legal and 0 for illegal choices; no logits, and no list of choices.",
        "mask-late": "Return the mask from `reset` on, all ones for agents without restrictions.",
    },
    warnings={
        "info-missing": "Return an info for every current agent: `{agent: {} for agent in self.agents}`.",
        "observation-list": (
            "Return `np.array(observation, space.dtype)`. Lists are slow because they are converted element by element."
        ),
        "observation-reused": (
            "Return a copy. Coterie copies observations at once, but code that keeps what `step` returned (tests, "
            "replay buffers, frame stacking) sees it change."
        ),
        "all-key-ignored": "Remove '__all__'. An episode is over when every agent has ended.",
        "agents-not-removed": (
            "Remove agents from `self.agents` in the step that ends them. One that terminates and stays begins a new "
            "life."
        ),
        "entry-surplus": "Return nothing for agents that ended before: it is ignored.",
        "mask-no-action": "The first action is used instead. Provide a no-op action for agents that must wait.",
        "mask-ignored": (
            "Return the mask of a Discrete or MultiDiscrete space as info['action_mask'], as a part 'action_mask' of "
            "a Dict observation, or by a method action_masks()."
        ),
        "one-step-episodes": "Check the conditions that end an episode, and `reset`. Ignore this for a bandit problem.",
    },
    notes={
        "observation-precision": (
            "Training is not affected. Use `.astype(space.dtype)` to convert the observation explicitly."
        ),
    },
)
"""Rules of the interfaces of Gymnasium and PettingZoo."""
ALL_RULES = RULES | INTERFACE_RULES


class CheckAborted(Exception):
    """The environment cannot be tested further in this check. The reason has been added to the findings."""


class FindingCollector:
    """Collects violations: one finding per rule and subject, with its first message and the number of occurrences."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], list[str]] = {}

    def add(self, rule: str, message: str, subject: str = "") -> None:
        """Adds a violation.

        Args:
            rule: Identifier of the violated rule, a key of `ALL_RULES`.
            message: What was observed, and where. Only the first message per rule and subject is kept.
            subject: The field or call that violates the rule.
        """
        self._messages.setdefault((rule, subject), []).append(message)

    def has(self, *rules: str) -> bool:
        """True if one of the rules was violated."""
        return any(rule in rules for rule, _ in self._messages)

    def findings(self) -> tuple[Finding, ...]:
        """Returns the findings by severity, then in the order of their first occurrence."""
        found = []
        for (name, _), messages in self._messages.items():
            more = f" (seen {len(messages)} times)" if len(messages) > 1 else ""
            found.append(Finding(ALL_RULES[name].severity, messages[0] + more, ALL_RULES[name].fix, name))
        return worst_first(found)

    @contextmanager
    def calling(
        self, call: str, rule: str = "raises", *, subject: str | None = None, aborts: bool = True
    ) -> Iterator[None]:
        """Context manager for a call of the environment. Whatever it raises becomes a finding.

        Args:
            call: The call, for messages.
            rule: Rule that is violated. Errors of an adapter, which name what the environment returned, have their own.
            subject: Subject of the finding; default: the call.
            aborts: Raise CheckAborted afterwards.
        """
        try:
            yield
        except (KeyboardInterrupt, CheckAborted):
            raise
        except BaseException as error:  # an environment may raise anything
            subject = call if subject is None else subject
            if isinstance(error, WrongReturn):
                self.add(error.rule, str(error), error.subject)
            elif isinstance(error, LimitExceededError):
                self.add(rule, str(error), subject)
            elif isinstance(error, UserError) and rule == "raises":
                self.add("refused", f"{call}: {message_of(error)}", subject)
            else:
                self.add(rule, f"{call} raised {describe_error(error)}", subject)
            if aborts:
                raise CheckAborted from error


def describe_error(error: BaseException) -> str:
    """Returns the type and message of an exception in one line, and where the environment's code raised it."""
    if isinstance(error, EnvironmentFailedError) and error.__cause__ is not None:
        error = error.__cause__
    message, trace = message_of(error), error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None and not trace.tb_frame.f_globals.get("__name__", "").startswith("coterie."):
        where = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return (f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__) + where


@dataclass(frozen=True)
class Report:
    """Result of checking an environment.

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

    def _verdict(self) -> str:
        counts = {kind: sum(f.severity == kind for f in self.findings) for kind in ("error", "warning", "note")}
        counted = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count)
        return f"{self.name}: " + ("passed" if self.ok else "failed") + (f" ({counted})" if counted else "")

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: properties of the environment and the findings."""
        title = element("p", element("b", self._verdict()))
        return join((title, as_html(self.findings), table(["property", ""], self.summary.items())))

    def render(self, width: int = 110) -> str:
        """Returns the report as plain text with lines of at most `width` characters."""
        lines = [*wrap(self._verdict(), width), ""]
        column = max((len(name) for name in self.summary), default=0)
        for name, text in self.summary.items():
            lines += wrap(text, width, start=f"  {name:<{column}}  ")
        return "\n".join(lines + render(self.findings, width)) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data, as printed by `coterie check-env --json`."""
        findings = [
            {"severity": f.severity, "rule": f.name, "message": f.evidence, "fix": f.fix} for f in self.findings
        ]
        return {"env": self.name, "ok": self.ok, "findings": findings, "summary": self.summary}
