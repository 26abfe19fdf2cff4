"""The contract as rules: what a spec, a row and a step have to be like, and how rows follow each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.findings import Broken, Notebook
from coterie.envs.paths import leaves, on_host
from coterie.envs.vector import VectorEnv
from coterie.errors import EnvironmentFailedError, UserError, one_line
from coterie.types import ActionSpec, EnvSpec, RoleSpec, Row, Step

# --------------------------------------------------------------------------------------------------------------- spec


def check_spec(env: VectorEnv, copies: int, book: Notebook) -> None:
    """Notes what is wrong with an environment's spec. Broken if it cannot be used at all."""
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        book.note("spec", f"`spec` is {type(spec).__name__}, expected a coterie.types.EnvSpec")
        raise Broken
    if getattr(env, "copies", None) != copies:
        book.note("spec", f"`copies` is {getattr(env, 'copies', None)}, {copies} were asked for", "copies")
    if not isinstance(getattr(env, "device", None), torch.device):
        book.note("spec", f"`device` is {getattr(env, 'device', None)!r}, expected a torch.device", "device")
    _check_roles(spec, book)
    allowed = {"global", *spec.groups}
    for name, size in spec.state_sizes.items():
        if name not in allowed or not isinstance(size, int) or size < 1:
            book.note("spec-states", f"state '{name}' of size {size!r}; the groups are {list(spec.groups)}", name)
    if len(set(spec.metrics)) < len(spec.metrics):
        book.note("spec-metrics", f"metrics are {list(spec.metrics)}; a name stands twice")
    limit = spec.episode_limit
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        book.note("spec-limit", f"episode_limit is {limit!r}")
    if book.has("spec", "spec-roles", "spec-observations", "spec-actions", "spec-limit"):
        raise Broken


def _check_roles(spec: EnvSpec, book: Notebook) -> None:
    names = [role.name for role in spec.roles]
    if not names or len(set(names)) < len(names) or not all(role.n for role in spec.roles):
        counts = ", ".join(f"{role.name} ({role.n} agents)" for role in spec.roles)
        book.note("spec-roles", f"the roles are: {counts or 'none'}")
    twice = sorted({agent for agent in spec.agents if spec.agents.count(agent) > 1})
    if twice:
        book.note("spec-agents", f"these names stand for more than one agent: {', '.join(twice)}")
    order = [role.group for role in spec.roles]
    changes = [group for i, group in enumerate(order) if i == 0 or order[i - 1] != group]
    if len(set(changes)) < len(changes):
        book.note("spec-groups", f"the groups of the roles, in order, are {order}")
    for role in spec.roles:
        _check_spaces(role, book)


def _check_spaces(role: RoleSpec, book: Notebook) -> None:
    for name, space in sensors(role.observation_space).items():
        if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.uint8):
            book.note(
                "spec-observations", f"role {role.name}: the observation space{name} is {space}", role.name + name
            )
        elif not (space.low <= space.high).all():  # NaN too
            book.note("spec-observations", f"role {role.name}: {space} has a low above its high", role.name + name)
    try:
        choices = ActionSpec.of(role.action_space).choices
    except TypeError as error:
        book.note("spec-actions", f"role {role.name}: {error}", role.name)
        return
    if (not role.action.continuous and not choices) or min(choices, default=1) < 1:
        book.note("spec-actions", f"role {role.name}: {role.action_space} leaves nothing to choose", role.name)


def sensors(space: spaces.Space) -> dict[str, spaces.Space]:
    """The leaves of an observation space: by `['name']` for a Dict, else the space itself under the empty name."""
    if isinstance(space, spaces.Dict):
        return {f"[{key!r}]{k}": v for key, part in space.spaces.items() for k, v in sensors(part).items()}
    return {"": space}


# ------------------------------------------------------------------------------------------------------ rows and steps


class Watch:
    """Looks at the rows and steps of one environment as they come, and notes what breaks the contract."""

    def __init__(self, env: VectorEnv, book: Notebook, name: str = ""):
        self.spec, self.copies, self.device, self.book = env.spec, env.copies, env.device, book
        self._when = name
        self._row: Any = None  # the row that was shown last
        self._age = torch.zeros(self.copies, dtype=torch.int64)
        self._at = 0
        self.lengths: list[int] = []

    def begin(self, row: Any) -> Row:
        """The row that `reset` returned, on the host. Broken if it has not the form of a row."""
        row = self._structured("reset()", row, Row, self._row_form())
        self._at, self._age = 0, torch.zeros_like(self._age)
        self._rows(row, row.alive)
        self._none(~row.acted, "acted", "the row of a reset is a closing one")
        self._first(row, row.alive)
        self._row = row
        return row

    def step(self, result: Any) -> tuple[Step, Row]:
        """What `step` returned, on the host. Broken if it has not the form of a step and a row."""
        if not (isinstance(result, tuple) and len(result) == 2):
            self.book.note("returns", f"step() returned {type(result).__name__}, expected the pair (Step, Row)", "step")
            raise Broken
        self._at += 1
        step = self._structured("the step", result[0], Step, self._step_form())
        row = self._structured("the row", result[1], Row, self._row_form())
        before, self._row = self._row, row
        cut = before.acted[:, None] & before.alive & step.truncated & ~step.terminated
        self._rows(row, row.alive | cut)  # who was cut alone shows its last observation, and is not alive
        self._earned(before, step)
        self._ends(before, step, row)
        self._lives(before, step, row)
        return step, row

    # --------------------------------------------------------------------------------------------------- form

    def _row_form(self) -> dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]:
        """Shape and dtypes of every tensor of a row, by name."""
        b, n, flag, number = self.copies, self.spec.n, (torch.bool,), (torch.float32,)
        form: dict[str, Any] = {}
        for role in self.spec.roles:
            for name, space in sensors(role.observation_space).items():
                assert isinstance(space, spaces.Box)
                dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
                form[f"obs[{role.name!r}]{name}"] = ((b, role.n, *space.shape), (dtype,))
            if role.action.choices:
                form[f"action_mask[{role.name!r}]"] = ((b, role.n, role.action.mask_size), flag)
        form |= {f"state[{name!r}]": ((b, size), number) for name, size in self.spec.state_sizes.items()}
        return form | {"alive": ((b, n), flag), "first": ((b, n), flag), "acted": ((b,), flag)}

    def _step_form(self) -> dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]:
        b, n, flag, number = self.copies, self.spec.n, (torch.bool,), (torch.float32,)
        form: dict[str, Any] = {"reward": ((b, n), number), "group_reward": ((b, len(self.spec.groups)), number)}
        form |= {"terminated": ((b, n), flag), "truncated": ((b, n), flag)}
        form |= {"episode_terminated": ((b,), flag), "episode_truncated": ((b,), flag)}
        numbers = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
        return form | {f"metrics[{name!r}]": ((b,), numbers) for name in self.spec.metrics}

    def _structured(self, what: str, record: Any, kind: type[Any], form: Mapping[str, tuple]) -> Any:
        """A copy of the record on the host, once all its tensors have the form that the spec gives them."""
        if not isinstance(record, kind):
            self.book.note(
                "returns", f"{what} is {type(record).__name__}, expected coterie.types.{kind.__name__}", what
            )
            raise Broken
        found, sound = leaves(record), True
        missing = [name for name in form if name not in found and not name.startswith("action_mask")]
        surplus = [name for name in found if name not in form]
        for word, names in (("lacks", missing), ("has undeclared", surplus)):
            if names:
                self.book.note("names", f"{self._place()}{what} {word} {', '.join(names)}", word + what)
                sound = False
        for name in found.keys() & form.keys():
            sound &= self._formed(name, found[name], *form[name])
        if not sound:
            raise Broken
        return on_host(record)

    def _formed(self, name: str, leaf: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> bool:
        if not isinstance(leaf, Tensor):
            self.book.note("type", f"{self._place()}{name} is {type(leaf).__name__}", name)
            return False
        if tuple(leaf.shape) != shape:
            self.book.note("shape", f"{self._place()}{name} is {list(leaf.shape)}, expected {list(shape)}", name)
        if leaf.dtype not in dtypes:
            self.book.note("dtype", f"{self._place()}{name} is {leaf.dtype}, expected {dtypes[0]}", name)
        if leaf.device.type != self.device.type:
            self.book.note(
                "device", f"{self._place()}{name} is on {leaf.device}, the environment on {self.device}", name
            )
        return tuple(leaf.shape) == shape and leaf.dtype in dtypes and leaf.device.type == self.device.type

    # ------------------------------------------------------------------------------------------- one row, one step

    def _rows(self, row: Row, sees: Tensor) -> None:
        """sees: [B, N], whose observations and masks are read."""
        slices = self.spec.role_slices()
        for role in self.spec.roles:
            there = sees[:, slices[role.name]]
            seen = leaves(row.obs[role.name], f"obs[{role.name!r}]")
            for name, space in sensors(role.observation_space).items():
                self._observed(f"obs[{role.name!r}]{name}", seen[f"obs[{role.name!r}]{name}"], space, there, role)
            if role.name in row.action_mask:
                self._masks(role, row.action_mask[role.name], there)
        for name, value in row.state.items():
            self._none(~value.isfinite().all(-1), "finite", f"state['{name}'] holds NaN or infinity", f"state {name}")
        if not self.spec.mortal:
            self._none(~row.alive, "mortal", "an agent is not alive, and the spec says mortal=False")
        self._none(row.first & ~row.alive, "first", "`first` holds for an agent that is not alive", "dead")

    def _observed(self, name: str, value: Tensor, space: Any, there: Tensor, role: RoleSpec) -> None:
        start = self.spec.role_slices()[role.name].start
        flat = value.flatten(2) if value.ndim > 2 else value[..., None]
        low, high = (torch.as_tensor(bound).flatten() for bound in (space.low, space.high))
        if flat.is_floating_point():
            bad = there & ~flat.isfinite().all(-1)
            self._none(bad, "finite", f"{name} holds NaN or infinity", name, start)
            slack = 1e-5 * (1 + flat.abs())
            out = there & ~bad & ((flat < low - slack) | (flat > high + slack)).any(-1)
        else:
            out = there & ((flat < low) | (flat > high)).any(-1)
        if out.any():
            worst = flat[out]
            said = f"{name} holds values from {worst.min():.4g} to {worst.max():.4g}, outside of {space}"
            self._none(out, "range", said, name, start)

    def _masks(self, role: RoleSpec, mask: Tensor, there: Tensor) -> None:
        start = self.spec.role_slices()[role.name].start
        for i, component in enumerate(mask.split(role.action.choices, dim=-1)):
            said = f"the mask of role {role.name} allows nothing in component {i}"
            self._none(there & ~component.any(-1), "mask-empty", said, role.name, start)
        said = f"the mask of role {role.name} has a False for an agent that is not alive"
        self._none(~there & ~mask.all(-1), "mask-dead", said, role.name, start)

    def _earned(self, before: Row, step: Step) -> None:
        acted = before.acted
        for name, value in (("reward", step.reward), ("group_reward", step.group_reward)):
            self._none((~value.isfinite()).any(-1) & acted, "finite", f"{name} holds NaN or infinity", name)
            self._none((value != 0).any(-1) & ~acted, "closing-earns", f"{name} is not zero after a closing row", name)
        for name, value in step.metrics.items():
            self._none(~value.isfinite() & acted, "finite", f"metric '{name}' is NaN or infinite", name)
            self._none((value != 0) & ~acted, "closing-earns", f"metric '{name}' is not zero after a closing row", name)
        dead = acted[:, None] & ~before.alive
        self._none(dead & (step.reward != 0), "dead-earns", "an agent that is not alive gets a reward")
        self._none(dead & (step.terminated | step.truncated), "dead-ends", "an agent that is not alive ends again")
        if not self.spec.paid_by_group:
            paid = (step.group_reward != 0).any(-1)
            self._none(paid, "group-reward", "group_reward is not zero, and the spec says paid_by_group=False")

    # ---------------------------------------------------------------------------------------- how rows follow rows

    def _ends(self, before: Row, step: Step, row: Row) -> None:
        acted, ended = before.acted, step.episode_terminated | step.episode_truncated
        both = step.episode_terminated & step.episode_truncated
        self._none(both, "both-ends", "an episode is terminated and truncated at once", "episode")
        both = step.terminated & step.truncated
        self._none(both, "both-ends", "an agent is terminated and truncated at once", "agent")
        flagged = step.terminated | step.truncated
        self._none(~acted & (ended | flagged.any(-1)), "closing-ends", "an end is reported after a closing row")
        self._none(acted & ended & row.acted, "acted", "an episode ended, and the row after it is no closing one")
        self._none(acted & ~ended & ~row.acted, "acted", "a row is a closing one, and no episode ended", "surplus")
        self._none(~acted & ~row.acted, "acted", "the row after a closing row does not begin an episode", "twice")
        over = (acted & ended)[:, None] & before.alive
        self._none(over & ~flagged, "end-leaves-agents", "an episode ended, and an agent in it did not")
        self._none(
            step.episode_terminated & before.alive.any(-1) & flagged.any(-1) & ~step.terminated.any(-1),
            "end-kind",
            "an episode is terminated, and its agents are truncated",
        )
        if not self.spec.mortal:
            wrong = over & step.episode_truncated[:, None] & step.terminated
            self._none(wrong, "end-kind", "an episode is truncated, and an agent in it terminated", "cut")
        self._limits(acted, ended, step)

    def _limits(self, acted: Tensor, ended: Tensor, step: Step) -> None:
        self._age = torch.where(acted, self._age + 1, 0)
        limit = self.spec.episode_limit
        if limit is None:
            said = "an episode is cut, and the spec says episode_limit=None"
            self._none(step.episode_truncated & acted, "limit-undeclared", said)
        else:
            said = f"an episode goes on after {limit} steps, its declared limit"
            self._none(acted & ~ended & (self._age >= limit), "limit", said)
        self.lengths += self._age[acted & ended].tolist()

    def _lives(self, before: Row, step: Step, row: Row) -> None:
        acted = before.acted[:, None]
        over = (step.episode_terminated | step.episode_truncated)[:, None]
        flagged = step.terminated | step.truncated
        own = acted & ~over & before.alive
        if not self.spec.mortal:
            self._none(
                own & flagged, "mortal", "an agent ended before its episode, and the spec says mortal=False", "e"
            )
        self._none(own & flagged & row.alive, "slot-empty", "an agent ended and is alive in the row after")
        self._none(own & ~flagged & ~row.alive, "vanished", "an agent is gone, and no end was reported")
        cut = acted & over & before.alive & step.truncated & ~step.terminated
        self._none(cut & ~row.alive, "closing-hides", "an agent was cut with its episode, and the closing row hides it")
        self._first(row, row.alive & (~acted | ~before.alive))

    def _first(self, row: Row, expected: Tensor) -> None:
        self._none(expected & ~row.first, "first", "a life begins, and `first` is False", "missing")
        self._none(row.first & row.alive & ~expected, "first", "`first` is True in the middle of a life", "surplus")

    # -------------------------------------------------------------------------------------------------- writing down

    def _none(self, bad: Tensor, rule: str, said: str, subject: str = "", start: int = 0) -> None:
        """Notes the rule as broken if `bad`, [B] or [B, n] with agents from `start`, holds anywhere."""
        if not bad.any():
            return
        copy, *agent = torch.nonzero(bad)[0].tolist()
        who = f", agent {self.spec.agents[start + agent[0]]}" if agent else ""
        self.book.note(rule, f"{self._when}step {self._at}, copy {copy}{who}: {said}", subject)

    def _place(self) -> str:
        return f"{self._when}step {self._at}: "


def told(error: Exception) -> str:
    """An exception in one line: its type, and what it says."""
    if isinstance(error, EnvironmentFailedError) and error.__cause__ is not None:
        return one_line(error.__cause__)
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


def guarded(book: Notebook, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the environment's function returns. What it raises is noted, and Broken."""
    try:
        return function(*arguments)
    except UserError as error:  # of an adapter that looked at what the environment returned
        book.note("refused", f"{call}: {' '.join(str(error).split())}", call)
        raise Broken from error
    except Exception as error:  # an environment may raise anything
        book.note("raises", f"{call} raised {told(error)}", call)
        raise Broken from error
