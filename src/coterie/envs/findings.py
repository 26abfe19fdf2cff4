"""What checking an environment found: findings, the report, and for every rule how to mend what breaks it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One broken rule. what: what was seen, and where first; mend: how to put it right."""

    severity: Severity
    rule: str
    what: str
    mend: str


@dataclass(frozen=True)
class Report:
    """What the checker found. facts: what there is to know of the environment, by name, as text."""

    name: str
    findings: tuple[Finding, ...]
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing was found that training would suffer from: there is no error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def render(self, width: int = 110) -> str:
        """The report as plain text, lines of at most `width` characters."""
        lines = [f"{self.name}: {self._verdict()}", ""]
        indent = max((len(name) for name in self.facts), default=0) + 4
        for name, fact in self.facts.items():
            lines += textwrap.wrap(f"  {name:<{indent - 2}}{fact}", width, subsequent_indent=" " * indent)
        for finding in self.findings:
            lines += ["", f"{finding.severity}: {finding.rule}"]
            lines += textwrap.wrap(finding.what, width, initial_indent="  ", subsequent_indent="  ")
            lines += textwrap.wrap(finding.mend, width, initial_indent="  mend: ", subsequent_indent="        ")
        return "\n".join(lines) + "\n"

    def _verdict(self) -> str:
        counts = {kind: sum(f.severity == kind for f in self.findings) for kind in ("error", "warning", "note")}
        said = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count]
        return ("keeps the contract" if self.ok else "breaks the contract") + (f" ({', '.join(said)})" if said else "")


@dataclass(frozen=True)
class Rule:
    """severity and mend of whatever breaks it."""

    severity: Severity
    mend: str


class Broken(Exception):
    """The environment cannot be tested further in this trial; what is wrong has been noted."""


@dataclass
class _Entry:
    what: str
    times: int = 1


class Notebook:
    """Collects findings: one a rule and subject, with its first place and how often it was seen."""

    def __init__(self, rules: Mapping[str, Rule]):
        self._rules = rules
        self._entries: dict[tuple[str, str], _Entry] = {}

    def note(self, rule: str, what: str, subject: str = "") -> None:
        """Notes that `rule` was broken. subject: what by (a field, a call); it is noted once a subject."""
        entry = self._entries.get((rule, subject))
        if entry is None:
            self._entries[rule, subject] = _Entry(what)
        else:
            entry.times += 1

    def has(self, *rules: str) -> bool:
        return any(rule in rules for rule, _ in self._entries)

    def findings(self) -> tuple[Finding, ...]:
        """The worst first, else in the order in which they were seen."""
        found = []
        for (name, _), entry in self._entries.items():
            rule = self._rules[name]
            more = f" (seen {entry.times} times)" if entry.times > 1 else ""
            found.append(Finding(rule.severity, name, entry.what + more, rule.mend))
        return tuple(sorted(found, key=lambda f: ("error", "warning", "note").index(f.severity)))


RULES: dict[str, Rule] = {
    # ------------------------------------------------------------------------------------------------------ calls
    "raises": Rule(
        "error", "Run this call by itself to see the whole trace; no call may raise while the actions obey the masks."
    ),
    "refused": Rule("error", "The line names what was returned and what was expected: bring the two together."),
    "returns": Rule("error", "Return what the contract says: `reset` a Row, `step` a pair (Step, Row)."),
    "close": Rule("error", "Let `close` remember that it was called, and do nothing the second time."),
    "render": Rule("error", "Return a numpy array of uint8 [height, width, 3] whose longer side is `size` pixels."),
    "render-missing": Rule("warning", "Training works without pictures; videos need `render`."),
    "render-touches": Rule("error", "Draw from the state without changing it, and draw no random numbers."),
    # ------------------------------------------------------------------------------------------------------- spec
    "spec": Rule("error", "Set `spec`, `copies` and `device` on the environment before `reset` is called."),
    "spec-roles": Rule("error", "Give every role a name of its own and at least one agent."),
    "spec-agents": Rule("error", "Give every agent a name of its own, across all roles."),
    "spec-groups": Rule("error", "Order `spec.roles` group by group, so that a group is one slice of the agents."),
    "spec-observations": Rule("error", "Use a Box (float32, or uint8 for pictures) or a Dict of such Boxes."),
    "spec-actions": Rule("error", "Use Discrete, MultiDiscrete, a Box of one axis with finite bounds, or a Tuple."),
    "spec-states": Rule("error", "Name states `global` or like a group, each with its number of features, 1 or more."),
    "spec-metrics": Rule("error", "List every metric's name once in `spec.metrics`."),
    "spec-limit": Rule("error", "Set `spec.episode_limit` to a number of steps, 1 or more, or to None for no limit."),
    # -------------------------------------------------------------------------------------------- rows and steps
    "names": Rule("error", "Return exactly the entries that the spec declares, under the same names."),
    "type": Rule("error", "Return a torch tensor here."),
    "shape": Rule("error", "Copies come first, then agents, then features; nothing is squeezed for one of them."),
    "dtype": Rule("error", "Convert it: float32 for numbers, bool for flags, the space's own for observations."),
    "device": Rule("error", "Create every tensor on `env.device`."),
    "finite": Rule("error", "Look for divisions by zero, roots and logarithms; a run stops at such a number."),
    "range": Rule("error", "Widen the bounds of the observation space, or clip what is observed to them."),
    "mask-empty": Rule("error", "Leave at least one choice True in every component; who must wait gets a no-op."),
    "mask-dead": Rule("error", "Make the whole mask True where `alive` is False; the action is ignored there."),
    "mortal": Rule("error", "Set `mortal=True` in the spec; otherwise every agent lives in every row."),
    "group-reward": Rule("error", "Set `paid_by_group=True` in the spec; otherwise learners do not look at it."),
    # ----------------------------------------------------------------------------------------- ends and restarts
    "both-ends": Rule("error", "Decide: `terminated` if the task is over, else `truncated` if a limit cut it."),
    "acted": Rule("error", "`acted` is False exactly in the row right after the step that ended an episode."),
    "closing-earns": Rule("error", "Set rewards and metrics to zero for copies whose last row was a closing one."),
    "closing-ends": Rule("error", "Report no end for copies whose last row was a closing one: the step only restarts."),
    "closing-action": Rule("error", "Restart without looking at the action: the one given to a closing row is noise."),
    "closing-hides": Rule(
        "error", "Show who was cut as alive in the closing row: its last observation is what values are taken from."
    ),
    "first": Rule(
        "error", "`first` is True exactly where a life begins: for all alive at an episode's start, and on a return."
    ),
    "end-leaves-agents": Rule("error", "When an episode ends, flag every agent that was alive as ended too."),
    "end-kind": Rule("error", "Flag agents with the episode's kind of end: terminated by the task, truncated by cuts."),
    "limit": Rule("error", "End the episode at the step that makes it `spec.episode_limit` steps long."),
    "limit-undeclared": Rule(
        "warning", "If episodes are cut at a fixed length, say so: `spec.episode_limit`, or env.episode_limit=N."
    ),
    "no-end": Rule("warning", "Check with more steps, or a shorter episode limit: restarts could not be tested."),
    # ----------------------------------------------------------------------------------------------- dead agents
    "dead-earns": Rule("error", "Give no reward to who is not alive; pay what is due later as a group reward."),
    "dead-ends": Rule("error", "An agent ends once: no `terminated` or `truncated` while it is not alive."),
    "dead-action": Rule("error", "Ignore the action of who is not alive."),
    "slot-empty": Rule("error", "Show `alive` False in the row after an agent's end; its slot may fill later."),
    "vanished": Rule("error", "Report `terminated` or `truncated` at the step after which an agent is not alive."),
    # ------------------------------------------------------------------------------------------- seeds and state
    "determinism": Rule(
        "error", "Draw from generators seeded by the environment's seed alone; beware of sets, clocks and threads."
    ),
    "seed-ignored": Rule("warning", "Seed the generators with `seed`; nothing to do if the environment draws nothing."),
    "copies-alike": Rule("warning", "Give every copy draws of its own, or all of them live the same episode."),
    "copies-leak": Rule("warning", "Let what a copy does depend on its own state and action only; look at the axes."),
    "reset-repeats": Rule("warning", "Do not seed again in `reset()`: episodes after a reset would all be the same."),
    "reset-seed": Rule("error", "In `reset(seed)` seed every generator and forget everything that came before."),
    "global-random": Rule("error", "Use a generator of the environment's own, never the global one of the library."),
    "fresh": Rule("error", "Return new tensors (or clones); writing into one that was returned changes stored data."),
    "action-modified": Rule("error", "Copy the action before changing it; it is stored for learning."),
    "clip": Rule("error", "Map actions with `coterie.types.to_bounds`, which clips them to [-1, 1] first."),
    "state-kinds": Rule("error", "Put only dicts, lists, tensors, numbers, strings, booleans and None in the state."),
    "resume": Rule(
        "error", "Put all that the future depends on in `state_dict`, generators too, or set `exact_resume=False`."
    ),
    # ------------------------------------------------------------------------------------------------------ speed
    "slow": Rule("warning", "Work on all copies at once with tensors; profile a step; run copies in processes."),
}
