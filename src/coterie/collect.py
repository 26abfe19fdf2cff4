"""Collection: environments and acting policies, no gradients, no critic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from gymnasium.spaces import flatdim
from torch import Tensor

from coterie.envs.parts import Part, beside, parts_of, split, steps_beside
from coterie.envs.vector import VectorEnv, begin
from coterie.episodes import Episodes, Finished
from coterie.errors import NonFiniteError
from coterie.policy import Mode, Policy
from coterie.seeds import generator, seed_of
from coterie.types import Row, Step, TeamSpec, Tree, Window, tree_leaves, tree_map

# What the environment shows and pays, and what the windows of its teams are cut from: names of fields.
ROWS = ("obs", "action_mask", "state", "alive", "first", "acted")
STEPS = ("reward", "group_reward", "terminated", "truncated", "episode_terminated", "episode_truncated")


class Collector:
    """Steps an environment with a policy a team and hands every team the window that it lived through.

    Also keeps the statistics of the episodes that end while collecting.
    """

    def __init__(self, env: VectorEnv, policies: dict[str, Policy], seed: int):
        self.env, self.policies = env, dict(policies)
        self._seed = seed
        self._collected = 0  # rows of every copy since the run's begin
        self._noise = {name: generator(seed, "noise", name, device=env.device) for name in policies}
        self._row: Row | None = None
        self._carry = {name: policy.start(env.copies) for name, policy in policies.items()}
        self.episodes = Episodes(env.spec, env.copies, env.device)
        self.finished: list[Finished] = []
        self.ended: Finished | None = None  # the episodes of the last window, if there was one
        self.dropped = 0  # episodes whose worker failed
        self._spread_flags = not env.spec.mortal  # an agent's flags are its copy's
        self._cut: Tensor | None = None  # [B, N], whom the last step cut; None if no step was taken

    def advance(self, steps: int) -> tuple[dict[str, Window], Tensor]:
        """Acts for `steps` rows of every copy; returns each team's window and how many rows were acted on, a tensor
        [].
        """
        if self._row is None:
            self._row = begin(self.env)
        copies = self.env.copies
        carries = {name: tree_map(torch.clone, carry) for name, carry in self._carry.items()}
        noise = {name: p.noise(steps, copies, self._noise[name]) for name, p in self.policies.items()}
        modes: dict[str, Mode] = dict.fromkeys(self.policies, "explore")
        with stepping(self.env, self.policies.values()):
            lived = live(self.env, self.policies, self._row, self._carry, noise, modes)
        rows, paid = lived.rows, lived.steps
        self._row, self._carry = tree_map(_apart, rows[-1]), tree_map(_apart, lived.carry)
        self._collected += steps
        shown = {name: _stacked([getattr(r, name) for r in rows]) for name in ROWS}
        lost = lost_in(paid)
        if lost is not None:
            shown["acted"] = _without(shown["acted"], lost)
        earned = self._earned(paid, shown["alive"][:-1], shown["acted"][:-1])
        sees = self._sees(shown, earned)
        self._check(shown, earned, sees)
        finished = self.episodes.add(
            earned["reward"], earned["group_reward"], shown["acted"][:-1],
            earned["episode_terminated"] | earned["episode_truncated"], [step.metrics for step in paid], lost,
            labels_in(lived.records),
        )  # fmt: skip
        if lost is not None:
            self.dropped += int(lost.sum())
            _cut_before(lost, earned, shown["alive"][:-1])
        self.ended = finished
        if len(finished.length):
            self.finished.append(finished)
        actions, record = _stacked(lived.actions), _stacked(lived.records)
        windows = {
            name: self._window(policy.team, shown, sees, earned, actions, record[name], carries[name])
            for name, policy in self.policies.items()
        }
        return windows, shown["acted"][:-1].sum()

    def seat(self, policies: dict[str, Policy]) -> None:
        """From the next window on these act for their teams, with empty memories."""
        for name, policy in policies.items():
            self.policies[name], self._carry[name] = policy, policy.start(self.env.copies)

    def memory(self, team: str) -> Tree:
        """What the team's policy remembers of every copy, as `Policy.start` gives it."""
        return self._carry[team]

    def restart(self) -> None:
        """New episodes begin in every copy; those that are under way count nowhere."""
        self._row, self._cut = begin(self.env), None
        self._carry = {name: policy.start(self.env.copies) for name, policy in self.policies.items()}
        self.episodes = Episodes(self.env.spec, self.env.copies, self.env.device)

    def _earned(self, paid: list[Step], alive: Tensor, acted: Tensor) -> dict[str, Tensor]:
        """The steps' fields stacked to [T, B, ..]; what is the same for all agents is stacked once.

        Rewards are zero where nobody lives or acts, whatever the environment left there.
        """
        copywise = ("reward", "episode_terminated", "episode_truncated")
        names = copywise if self._spread_flags else STEPS
        earned = {name: torch.stack([getattr(step, name) for step in paid]) for name in names}
        if self._spread_flags:
            shape = earned["reward"].shape
            earned["terminated"] = earned["episode_terminated"].unsqueeze(-1).expand(shape)
            earned["truncated"] = earned["episode_truncated"].unsqueeze(-1).expand(shape)
        if "group_reward" not in earned:
            earned["group_reward"] = (
                torch.stack([step.group_reward for step in paid])
                if self.env.spec.paid_by_group
                else paid[0].group_reward.expand(len(paid), -1, -1)
            )
        earned["reward"] = due(earned["reward"], acted, alive if self.env.spec.mortal else None)
        if self.env.spec.paid_by_group:
            earned["group_reward"] = due(earned["group_reward"], acted)
        return earned

    def _sees(self, shown: dict[str, Any], earned: dict[str, Tensor]) -> Tensor:
        """Whose observations count, [T + 1, B, N]: of who lives, and of who was cut alone in the row behind the cut,
        since its value is taken from there. Notes whom the last step cut.
        """
        alive: Tensor = shown["alive"]
        if not self.env.spec.mortal:
            return alive
        cut = earned["truncated"] & ~earned["terminated"] & alive[:-1] & shown["acted"][:-1, :, None]
        before = torch.zeros_like(cut[0]) if self._cut is None else self._cut
        self._cut = cut[-1].clone()
        return alive | torch.cat([before[None], cut])

    def _window(
        self, team: TeamSpec, shown: dict[str, Any], sees: Tensor, earned: dict[str, Tensor], actions: Tree,
        record: Tree, carry: Tree,
    ) -> Window:  # fmt: skip
        agents = slice(team.start, team.stop)
        names = [role.name for role in team.roles]
        alive, acted = shown["alive"][..., agents], shown["acted"]
        obs = {name: shown["obs"][name] for name in names}
        if team.mortal:  # what is masked must reach no loss, whatever the environment left there
            obs = _cleaned(obs, sees[..., agents], team)
        return Window(
            obs=obs,
            action_mask={name: shown["action_mask"][name] for name in names if name in shown["action_mask"]},
            state=shown["state"],
            alive=alive,
            first=shown["first"][..., agents],
            acted=acted,
            action={name: actions[name] for name in names},
            record=record,
            carry=carry,
            reward=earned["reward"][..., agents],
            group_reward=earned["group_reward"][..., list(team.groups)],
            terminated=earned["terminated"][..., agents],
            truncated=earned["truncated"][..., agents],
            episode_terminated=earned["episode_terminated"],
            episode_truncated=earned["episode_truncated"],
        )

    def _check(self, shown: dict[str, Any], earned: dict[str, Tensor], sees: Tensor) -> None:
        """NonFiniteError names the copy, agent and step of a NaN or infinity that somebody saw (`_sees`) or earned."""
        sums = [x.sum() for x in tree_leaves((shown["obs"], shown["state"], earned["reward"], earned["group_reward"]))]
        if bool(torch.stack([s.float() for s in sums]).isfinite().all()):
            return
        slices = self.env.spec.role_slices()
        for name, x in shown["obs"].items():
            there = sees[..., slices[name]]
            for leaf in tree_leaves(x):
                bad = ~leaf.flatten(3).isfinite().all(-1) & there
                self._blame(bad, f"observation of role '{name}'", self.env.spec.agents[slices[name]])
        for name, x in shown["state"].items():
            self._blame(~x.isfinite().all(-1), f"state '{name}'", None)
        self._blame(~earned["reward"].isfinite(), "reward", self.env.spec.agents)
        self._blame(~earned["group_reward"].isfinite(), "group reward", self.env.spec.groups, "group")

    def _blame(self, bad: Tensor, what: str, names: tuple[str, ...] | None, kind: str = "agent") -> None:
        """NonFiniteError for the first True of `bad` [T, B] or [T, B, names]."""
        places = bad.nonzero()
        if len(places):
            place = places[0].tolist()
            whose = "" if names is None else f", {kind} {names[place[2]]}"
            step = self._collected - len(bad) + place[0]
            raise NonFiniteError(
                f"the {what} is NaN or infinite: environment {self.env.spec.name}, copy {place[1]}{whose}, "
                f"step {step} of the copy ({len(places)} such places): look for a division by zero or an "
                "unbounded state in the environment (coterie check-env)"
            )

    def statistics(self) -> Finished | None:
        """The episodes that ended since the last call; None if none did."""
        taken, self.finished = self.finished, []
        return Finished.joined(taken) if taken else None

    def state_dict(self) -> dict[str, Any]:
        """The environment, its present row, memories, noise and unfinished episodes."""
        row = self._row
        return {
            "env": self.env.state_dict() if self.env.spec.exact_resume else {},
            "row": None if row is None else {name: getattr(row, name) for name in ROWS},
            "cut": self._cut,
            "carry": self._carry,
            "noise": {name: g.get_state() for name, g in self._noise.items()},
            "collected": self._collected,
            "episodes": self.episodes.state_dict(),
            "finished": [f.state_dict() for f in self.finished],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called. An environment that cannot be restored begins new episodes."""
        device = self.env.device
        for name, drawn in state["noise"].items():
            self._noise[name].set_state(drawn.cpu())
        self._collected = state["collected"]
        self.finished = [Finished(**tree_map(lambda x: x.to(device), f)) for f in state["finished"]]
        if state["row"] is None:
            return
        if not self.env.spec.exact_resume:  # seeded by how far the run is, so that it does not see its begin again
            self._row = begin(self.env, seed_of(self._seed, "resumed", self._collected))
            return
        self.env.load_state_dict(state["env"])
        fields = {name: tree_map(lambda x: x.to(device), state["row"][name]) for name in ROWS}
        self._row = Row(**fields)
        cut: Tensor | None = state.get("cut")  # checkpoints of older versions do not say
        self._cut = None if cut is None else cut.to(device)
        self._carry = tree_map(lambda x: x.to(device), state["carry"])
        self.episodes.load_state_dict(state["episodes"])


def lost_in(steps: list[Step]) -> Tensor | None:
    """Where steps were lost [T, B]; None if none was."""
    if all(step.lost is None for step in steps):
        return None
    nothing = torch.zeros_like(steps[0].episode_terminated)
    return torch.stack([nothing if step.lost is None else step.lost for step in steps])


def labels_in(records: list[dict[str, Tree]]) -> dict[str, Tensor]:
    """As which of several teams acted, by team [T, B], from what T rows noted by team; only teams that are several."""
    several = [name for name, noted in records[0].items() if "label" in noted]
    return {name: torch.stack([noted[name]["label"][:, 0] for noted in records]) for name in several}


def _without(acted: Tensor, lost: Tensor) -> Tensor:
    """`acted` [T + 1, B], False in the rows whose step was lost: they are the last that is known of their episodes."""
    acted = acted.clone()
    acted[:-1] &= ~lost
    return acted


def _cut_before(lost: Tensor, earned: dict[str, Tensor], alive: Tensor) -> None:
    """Marks the step that led to such a row as cut by a limit, unless it is of the window before or began there."""
    into = torch.cat([lost[1:], torch.zeros_like(lost[:1])])
    into &= ~(earned["episode_terminated"] | earned["episode_truncated"])
    earned["episode_truncated"] = earned["episode_truncated"] | into
    earned["truncated"] = earned["truncated"] | (into.unsqueeze(-1) & alive & ~earned["terminated"])


_FEW, _LIGHT = 1 << 14, 1 << 24
"""Numbers observed in a row of all copies, and multiplications that acting on it takes, up to which one thread steps
and acts as fast as two, or faster. On spread, 25 rows of 128 copies, 7,000 numbers, took 12.5 ms with one and 15 with
two of an AMD EPYC; of 512 copies 29 and 23. With a GRU, 26 rows of 10 M multiplications took as long with either, of
20 M 26 ms with one and 22 with two, and 128 rows of 40 M 211 and 145.
"""


@contextmanager
def stepping(env: VectorEnv, policies: Iterable[Policy]) -> Iterator[None]:
    """Within it nothing is differentiated, and where a row of all copies is little work PyTorch keeps to one thread.

    Products of a few dozen rows are over before a second thread has taken its part.
    """
    threads = torch.get_num_threads()
    alone = env.device.type == "cpu" and threads > 1 and _little(env, policies)
    if alone:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        if alone:
            torch.set_num_threads(threads)


def _little(env: VectorEnv, policies: Iterable[Policy]) -> bool:
    """Whether one thread is enough to act on a row of all copies; as if every agent read every weight once."""
    seen = sum(role.n * flatdim(role.observation_space) for role in env.spec.roles)
    weights = sum(p.team.n * w.numel() for p in policies for net in p.networks for w in net.parameters())
    return env.copies * seen <= _FEW and env.copies * weights <= _LIGHT


@dataclass
class Lived:
    """What all copies lived through in T steps: T + 1 rows; T steps, actions by role and notes by team; the memories by
    team after the last row that was acted on.
    """

    rows: list[Row]
    steps: list[Step]
    actions: list[dict[str, Tree]]
    records: list[dict[str, Tree]]
    carry: dict[str, Tree]


def live(
    env: VectorEnv,
    policies: dict[str, Policy],
    row: Row,
    carry: dict[str, Tree],
    noise: dict[str, list[Tree]],
    mode: dict[str, Mode],
) -> Lived:
    """Acts on `row` and on those that follow, as often as there is noise, by team.

    Where the environment has parts, all are stepped at once but the one that is acted on.
    """
    parts = parts_of(env)
    sizes = [part.copies for part in parts]
    lives = [
        Lived([own], [], [], [], memory) for own, memory in zip(split(row, sizes), split(carry, sizes), strict=True)
    ]
    drawn = [split({name: n[t] for name, n in noise.items()}, sizes) for t in range(len(next(iter(noise.values()))))]
    for t, pieces in enumerate(drawn):
        for part, life, piece in zip(parts, lives, pieces, strict=True):
            if t:
                _hear(part, life)
            actions, record, life.carry = act(policies, life.rows[-1], life.carry, piece, mode)
            part.send(actions)
            life.actions.append(actions)
            life.records.append(record)
    for part, life in zip(parts, lives, strict=True):
        _hear(part, life)
    if len(lives) == 1:
        return lives[0]
    return Lived(
        [row, *(beside(rows) for rows in zip(*(life.rows[1:] for life in lives), strict=True))],
        [steps_beside(steps) for steps in zip(*(life.steps for life in lives), strict=True)],
        [beside(actions) for actions in zip(*(life.actions for life in lives), strict=True)],
        [beside(records) for records in zip(*(life.records for life in lives), strict=True)],
        beside([life.carry for life in lives]),
    )


def _hear(part: Part, life: Lived) -> None:
    """Waits for what a part was told to do."""
    step, row = part.receive()
    life.steps.append(step)
    life.rows.append(row)


def act(
    policies: dict[str, Policy], row: Row, carry: dict[str, Tree], noise: dict[str, Tree], mode: dict[str, Mode]
) -> tuple[dict[str, Tree], dict[str, Tree], dict[str, Tree]]:
    """What every team does on a row: actions by role, what the policies note by team, their memories by team."""
    actions, records, carries = {}, {}, {}
    for name, policy in policies.items():
        action, carries[name], records[name] = policy.act(seen(policy.team, row), carry[name], noise[name], mode[name])
        actions.update(action)
    return actions, records, carries


def seen(team: TeamSpec, row: Row) -> Row:
    """The part of a row that a team's policy reads."""
    part = row.team(team)
    if team.mortal:  # a dead agent's NaN would stay in its memory, which 0 x NaN does not clear
        part = replace(part, obs=_cleaned(part.obs, part.alive, team))
    return part


def _stacked(trees: list[Tree]) -> Tree:
    """Trees of tensors [B, ..] as one tree of tensors [T, B, ..]; a tensor that never changes is not copied."""

    def stack(*leaves: Tensor) -> Tensor:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            return first.clone().expand(len(leaves), *first.shape)
        return torch.stack(leaves)

    return tree_map(stack, trees[0], *trees[1:])


def due(reward: Tensor, acted: Tensor, alive: Tensor | None = None) -> Tensor:
    """Rewards [T, B, ..] with zeros where a copy did not act [T, B] and, if given, where an agent is dead [T, B, N]."""
    counts = acted.unsqueeze(-1)
    return torch.where(counts if alive is None else counts & alive, reward, 0.0)


def _apart(x: Tensor) -> Tensor:
    """x laid out as it is after loading: results of vector code can depend on how its operands lie in memory."""
    whole = x.is_contiguous() and x.storage_offset() == 0
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def _cleaned(obs: dict[str, Tree], sees: Tensor, team: TeamSpec) -> dict[str, Tree]:
    """Observations by role [.., n, D] with zeros where nobody sees them; sees: [.., N]."""
    cleaned, at = {}, 0
    for role in team.roles:
        here = sees[..., at : at + role.n]
        at += role.n
        cleaned[role.name] = tree_map(
            lambda x, here=here: torch.where(here.view(*here.shape, *[1] * (x.ndim - here.ndim)), x, 0), obs[role.name]
        )
    return cleaned
