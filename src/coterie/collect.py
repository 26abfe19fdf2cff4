"""Collection: environments and acting policies, no gradients, no critic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.envs.vector import VectorEnv
from coterie.episodes import Episodes, Finished
from coterie.errors import NonFiniteError
from coterie.policy import Mode, Policy
from coterie.seeds import generator
from coterie.types import Row, Step, TeamSpec, Tree, Window, tree_leaves, tree_map

# What the environment shows and pays, and what the windows of its teams are cut from: names of fields.
ROWS = ("obs", "action_mask", "state", "alive", "first", "acted")
STEPS = ("reward", "group_reward", "terminated", "truncated", "episode_terminated", "episode_truncated")


class Collector:
    """Steps an environment with a policy a team and hands every team the window that it lived through.

    Also keeps the statistics of the episodes that end while collecting.
    """

    def __init__(self, env: VectorEnv, policies: dict[str, Policy], seed: int):
        self.env, self.policies = env, policies
        self._noise = {name: generator(seed, "noise", name, device=env.device) for name in policies}
        self._row: Row | None = None
        self._carry = {name: policy.start(env.copies) for name, policy in policies.items()}
        self.episodes = Episodes(env.spec, env.copies, env.device)
        self.finished: list[Finished] = []
        self._spread_flags = not env.spec.mortal  # an agent's flags are its copy's

    def advance(self, steps: int) -> tuple[dict[str, Window], Tensor]:
        """Acts for `steps` rows of every copy; returns each team's window and how many rows were acted on, a tensor []."""
        if self._row is None:
            self._row = self.env.reset()
        copies = self.env.copies
        carries = {name: tree_map(torch.clone, carry) for name, carry in self._carry.items()}
        noise = {name: p.noise(steps, copies, self._noise[name]) for name, p in self.policies.items()}
        modes: dict[str, Mode] = dict.fromkeys(self.policies, "explore")
        row, carry = self._row, self._carry
        rows, paid, done, records = [row], [], [], []
        with torch.inference_mode():
            for t in range(steps):
                actions, record, carry = act(
                    self.policies, row, carry, {name: n[t] for name, n in noise.items()}, modes
                )
                step, row = self.env.step(actions)
                rows.append(row)
                paid.append(step)
                done.append(actions)
                records.append(record)
        self._row, self._carry = row, carry
        shown = {name: _stacked([getattr(r, name) for r in rows]) for name in ROWS}
        earned = self._earned(paid)
        finished = self.episodes.add(
            earned["reward"], earned["group_reward"], shown["acted"][:-1],
            earned["episode_terminated"] | earned["episode_truncated"], [step.metrics for step in paid],
        )  # fmt: skip
        if len(finished.length):
            self.finished.append(finished)
        actions, record = _stacked(done), _stacked(records)
        windows = {
            name: self._window(policy.team, shown, earned, actions, record[name], carries[name])
            for name, policy in self.policies.items()
        }
        self._check(shown, earned)
        return windows, shown["acted"][:-1].sum()

    def _earned(self, paid: list[Step]) -> dict[str, Tensor]:
        """The steps' fields stacked to [T, B, ..]; what is the same for all agents is stacked once."""
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
        return earned

    def _window(
        self, team: TeamSpec, shown: dict[str, Any], earned: dict[str, Tensor], actions: Tree, record: Tree, carry: Tree
    ):
        agents = slice(team.start, team.stop)
        names = [role.name for role in team.roles]
        alive, acted = shown["alive"][..., agents], shown["acted"]
        obs = {name: shown["obs"][name] for name in names}
        reward = earned["reward"][..., agents]
        if team.mortal:  # what is masked must reach no loss, whatever the environment left there
            obs, reward = _cleaned(obs, reward, alive, team)
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
            reward=reward,
            group_reward=earned["group_reward"][..., list(team.groups)],
            terminated=earned["terminated"][..., agents],
            truncated=earned["truncated"][..., agents],
            episode_terminated=earned["episode_terminated"],
            episode_truncated=earned["episode_truncated"],
        )

    def _check(self, shown: dict[str, Any], earned: dict[str, Tensor]) -> None:
        """NonFiniteError names the copy, agent and step of a NaN or infinity that somebody alive saw or earned."""
        sums = [x.sum() for x in tree_leaves((shown["obs"], shown["state"]))] + [earned["reward"].sum()]
        if bool(torch.stack([s.float() for s in sums]).isfinite().all()):
            return
        slices = self.env.spec.role_slices()
        for name, x in shown["obs"].items():
            alive = shown["alive"][..., slices[name]]
            for leaf in tree_leaves(x):
                bad = ~leaf.flatten(3).isfinite().all(-1) & alive
                self._blame(bad, f"observation of role '{name}'", self.env.spec.agents[slices[name]])
        for name, x in shown["state"].items():
            self._blame(~x.isfinite().all(-1), f"state '{name}'", None)
        self._blame(~earned["reward"].isfinite() & shown["alive"][:-1], "reward", self.env.spec.agents)

    def _blame(self, bad: Tensor, what: str, agents: tuple[str, ...] | None) -> None:
        places = bad.nonzero()
        if len(places):
            place = places[0].tolist()
            agent = "" if agents is None else f", agent {agents[place[2]]}"
            raise NonFiniteError(
                f"the {what} is NaN or infinite: environment {self.env.spec.name}, copy {place[1]}{agent}, "
                f"step {place[0]} of the window ({len(places)} such places): look for a division by zero or an "
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
            "carry": self._carry,
            "noise": {name: g.get_state() for name, g in self._noise.items()},
            "episodes": self.episodes.state_dict(),
            "finished": [f.state_dict() for f in self.finished],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called. An environment that cannot be restored begins new episodes."""
        device = self.env.device
        for name, drawn in state["noise"].items():
            self._noise[name].set_state(drawn.cpu())
        if not self.env.spec.exact_resume or state["row"] is None:
            return
        self.env.load_state_dict(state["env"])
        fields = {name: tree_map(lambda x: x.to(device), state["row"][name]) for name in ROWS}
        self._row = Row(**fields)
        self._carry = tree_map(lambda x: x.to(device), state["carry"])
        self.episodes.load_state_dict(state["episodes"])
        self.finished = [Finished(**tree_map(lambda x: x.to(device), f)) for f in state["finished"]]


def act(
    policies: dict[str, Policy], row: Row, carry: dict[str, Tree], noise: dict[str, Tree], mode: dict[str, Mode]
) -> tuple[dict[str, Tree], dict[str, Tree], dict[str, Tree]]:
    """What every team does on a row: actions by role, what the policies note by team, their memories by team."""
    actions, records, carries = {}, {}, {}
    for name, policy in policies.items():
        action, carries[name], records[name] = policy.act(row.team(policy.team), carry[name], noise[name], mode[name])
        actions.update(action)
    return actions, records, carries


def _stacked(trees: list[Tree]) -> Tree:
    """Trees of tensors [B, ..] as one tree of tensors [T, B, ..]; a tensor that never changes is not copied."""

    def stack(*leaves: Tensor) -> Tensor:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            return first.clone().expand(len(leaves), *first.shape)
        return torch.stack(leaves)

    return tree_map(stack, trees[0], *trees[1:])


def _cleaned(obs: dict[str, Tree], reward: Tensor, alive: Tensor, team: TeamSpec) -> tuple[dict[str, Tree], Tensor]:
    """Zeros wherever nobody lives: observations by role [T + 1, B, n, ..] and rewards [T, B, N]."""
    cleaned, at = {}, 0
    for role in team.roles:
        here = alive[..., at : at + role.n]
        at += role.n
        cleaned[role.name] = tree_map(
            lambda x, here=here: torch.where(here.view(*here.shape, *[1] * (x.ndim - here.ndim)), x, 0), obs[role.name]
        )
    return cleaned, torch.where(alive[:-1], reward, 0.0)
