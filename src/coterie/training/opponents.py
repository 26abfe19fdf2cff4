"""Opponents of self-play: a pool of snapshots, and the policy of a team that plays as all of them in one batch.

The snapshots of a policy are stacked, so that a batch of environments can play against all of them at once, one per
episode. Results of games between them give Elo ratings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.specs import EnvSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.ratings import elo
from coterie.nets.recurrent import vmapped
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.training.episodes import FinishedEpisodes

CURRENT_POLICY = -1
"""Number of the policy itself. Snapshots are numbered 0, 1, 2, ... in the order in which they were made."""


class PolicyModule(nn.Module):
    """A policy as a module over its networks, so that `functional_call` can act with other parameters."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.act = policy.act
        self.networks = nn.ModuleList(policy.networks)

    def forward(self, *args: Any) -> Any:
        return self.act(*args)

    def tensors(self) -> dict[str, Tensor]:
        """Returns parameters and buffers by name."""
        return {name: x.detach() for name, x in (*self.named_parameters(), *self.named_buffers())}


class SnapshotPool:
    """A policy and its newest snapshots.

    Slot 0 holds the policy as of the last `refresh`. The other slots hold snapshots; when all are taken, the oldest
    snapshot is replaced.

    Args:
        policy: The policy to take snapshots of.
        size: Maximum number of snapshots.
    """

    def __init__(self, policy: Policy, size: int):
        self.size = size
        self._module = PolicyModule(policy)
        tensors = self._module.tensors()
        self.device = next(iter(tensors.values())).device
        self._stacked = {name: torch.stack([x] * (size + 1)) for name, x in tensors.items()}
        self._set_numbers([CURRENT_POLICY])
        self.created = 0
        """Number of snapshots made so far."""

    @property
    def stacked(self) -> dict[str, Tensor]:
        """Parameters and buffers by name for all taken slots, [slots, ..] each."""
        return {name: x[: len(self.numbers)] for name, x in self._stacked.items()}

    def refresh(self) -> None:
        """Copies the current policy to slot 0."""
        self._write(0)

    def add(self) -> int:
        """Makes a snapshot and returns its number."""
        number = self.created
        slot = 1 + number % self.size
        self._write(slot)
        self._set_numbers([*self.numbers[:slot], number, *self.numbers[slot + 1 :]])
        self.created += 1
        return number

    @property
    def next_replaced_slot(self) -> int | None:
        """Slot of the snapshot that the next one replaces; None while there are free slots."""
        slot = 1 + self.created % self.size
        return slot if slot < len(self.numbers) else None

    def oldest_first(self) -> list[int]:
        """Returns the slots of the snapshots, from the oldest to the newest."""
        return sorted(range(1, len(self.numbers)), key=lambda slot: self.numbers[slot])

    def _set_numbers(self, numbers: list[int]) -> None:
        self.numbers = numbers
        """Number of the snapshot in each taken slot."""
        self.label = torch.tensor(numbers, device=self.device)
        """The same numbers on the device, [slots] int64."""

    def _write(self, slot: int) -> None:
        with torch.no_grad():
            for name, x in self._module.tensors().items():
                self._stacked[name][slot].copy_(x)

    def state_dict(self) -> dict[str, Any]:
        """Returns the snapshots and their numbers."""
        return {"stacked": self._stacked, "numbers": self.numbers, "created": self.created}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        for name, x in self._stacked.items():
            x.copy_(state["stacked"][name])
        self._set_numbers(list(state["numbers"]))
        self.created = state["created"]


_SLOT, _EPISODE_ENDED = "opponent_slot", "opponent_episode_ended"
"""Names in the hidden state: slot of the opponent in each environment [B], and whether the last timestep was the final
one of its episode [B]."""


class OpponentPolicy(Policy):
    """Samples one entry of a pool per episode in every environment and acts with it until the episode ends.

    Environments that play against the same entry are grouped, and all groups are computed in one batched call. The
    extras contain `label` [B, N], the number of the snapshot that acts; -1 for the current policy.

    Args:
        pool: Pool of snapshots.
        policy: Acts for the team with the networks that the pool holds snapshots of.
        current_only: True if only slot 0, the current policy, is ever played.
    """

    def __init__(self, pool: SnapshotPool, policy: RemappedPolicy, current_only: bool = False):
        self.team, self.policy = policy.team, policy
        self._pool, self._current_only = pool, current_only
        self._module = PolicyModule(policy)
        self.probabilities = torch.ones(1, device=pool.device)
        """Probability of each slot [slots], to be set between rollouts."""

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        device = self._pool.device
        return self.policy.initial_hidden_state(num_envs) | {
            _SLOT: torch.zeros(num_envs, dtype=torch.int64, device=device),
            _EPISODE_ENDED: torch.ones(num_envs, dtype=torch.bool, device=device),
        }

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        """Draws the noise of the policy, and per environment a number that selects the opponent of a new episode."""
        drawn = torch.rand(steps, num_envs, generator=generator, device=self._pool.device).unbind(0)
        inner = self.policy.draw_noise(steps, num_envs, generator)
        return [{"act": own, "opponent": number} for own, number in zip(inner, drawn, strict=True)]

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        edges = self.probabilities.cumsum(0)[:-1]
        slot = torch.where(
            hidden_state[_EPISODE_ENDED],
            torch.searchsorted(edges, noise["opponent"], right=True),
            hidden_state[_SLOT],
        )
        inputs = {
            "obs": timestep.obs,
            "action_mask": timestep.action_mask,
            "alive": timestep.alive,
            "first": timestep.first,
            "acted": timestep.acted,
            "hidden_state": {n: x for n, x in hidden_state.items() if n not in (_SLOT, _EPISODE_ENDED)},
            "noise": noise["act"],
        }
        with torch.no_grad():
            if self._current_only or len(self._pool.numbers) == 1:
                first_slot = {name: x[0] for name, x in self._pool.stacked.items()}
                action, hidden_state = self._act_as(first_slot, inputs)
            else:
                action, hidden_state = self._act_in_groups(slot, inputs)
        extras = {"label": self._pool.label[slot].unsqueeze(1).expand(-1, self.team.n)}
        actions = {role: Action(**parts) for role, parts in action.items()}
        return actions, hidden_state | {_SLOT: slot, _EPISODE_ENDED: ~timestep.acted}, extras

    def _act_in_groups(self, slot: Tensor, inputs: dict[str, Tree]) -> tuple[Tree, HiddenState]:
        """Sorts environments [B] by slot, pads them to equal groups [slots, C], acts, and restores their order.

        Transfers the size of the largest group to the host, once per timestep.
        """
        slots, num_envs = len(self._pool.numbers), len(slot)
        order = slot.argsort(stable=True)
        counts = torch.bincount(slot, minlength=slots)
        largest = int(counts.max())
        rank = torch.arange(num_envs, device=slot.device) - (counts.cumsum(0) - counts)[slot[order]]
        position = slot[order] * largest + rank
        take = torch.zeros(slots * largest, dtype=torch.int64, device=slot.device)
        take[position] = order
        inverse = torch.empty_like(order)
        inverse[order] = position
        grouped = tree_map(lambda x: x[take].unflatten(0, (slots, largest)), inputs)
        token = vmapped.set(True)
        try:
            out = torch.vmap(self._act_as)(self._pool.stacked, grouped)
        finally:
            vmapped.reset(token)
        return tree_map(lambda x: x.flatten(0, 1)[inverse], out)

    def _act_as(self, tensors: dict[str, Tensor], inputs: dict[str, Tree]) -> tuple[Tree, HiddenState]:
        """Acts with the parameters of one slot. Returns plain dictionaries, which `vmap` can stack."""
        timestep = Timestep(
            obs=inputs["obs"],
            action_mask=inputs["action_mask"],
            state={},
            alive=inputs["alive"],
            first=inputs["first"],
            acted=inputs["acted"],
        )
        arguments = (timestep, inputs["hidden_state"], inputs["noise"], "sample")
        action, hidden_state, _ = functional_call(self._module, tensors, arguments)
        plain = {role: {name: x for name, x in vars(a).items() if x is not None} for role, a in action.items()}
        return plain, hidden_state

    def is_playing(self, slot: int, hidden_state: HiddenState) -> bool:
        """Returns True if an environment is within an episode against the slot.

        Args:
            slot: Slot of the pool.
            hidden_state: This policy's hidden state of all environments.
        """
        return bool(((hidden_state[_SLOT] == slot) & ~hidden_state[_EPISODE_ENDED]).any())

    def state_dict(self) -> dict[str, Any]:
        """Returns {}: the parameters are part of the pool's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def win_scores(finished: FinishedEpisodes, team: TeamSpec, opponent: TeamSpec) -> Tensor:
    """Returns a team's score per episode [E]: 1 for a win, 0.5 for a draw, 0 for a loss.

    Uses the environment's metrics `<group>_won` if both teams have one; otherwise the team with the larger return wins.
    """
    names = [f"{spec.roles[0].group}_won" for spec in (team, opponent)]
    if all(name in finished.metrics for name in names):
        own, other = (finished.metrics[name].double() for name in names)
    else:
        own, other = finished.team_return(team), finished.team_return(opponent)
    return ((own > other).double() - (own < other).double() + 1) / 2


def score_by_opponent(label: Tensor, score: Tensor) -> list[tuple[int, float, int]]:
    """Sums scores by opponent.

    Args:
        label: Number of the opponent in each episode, [E].
        score: Score of each episode, [E].

    Returns:
        For each opponent its number, the sum of the scores, and the number of games. One transfer to the host.
    """
    number, index = label.unique(return_inverse=True)
    games = torch.bincount(index, minlength=len(number))
    sums = torch.zeros_like(games, dtype=score.dtype).index_add_(0, index, score)
    found = torch.stack([number.to(score.dtype), sums, games.to(score.dtype)], 1).tolist()
    return [(int(opponent), total, int(count)) for opponent, total, count in found]


def win_criterion(spec: EnvSpec) -> str:
    """Returns a description of how `win_scores` decides who wins."""
    has_metrics = all(f"{group}_won" in spec.metrics for group in spec.groups)
    return "the environment's metrics" if has_metrics else "the larger return"


@dataclass(frozen=True)
class RatedSnapshot:
    """A snapshot on the ladder.

    Attributes:
        team: The team that it is a snapshot of.
        number: Its number among the snapshots of the team.
        steps: Environment steps of the run when it was made.
    """

    team: str
    number: int
    steps: int


class EloLadder:
    """Results of snapshots against each other and their Elo ratings. The rating of the first snapshot is 0."""

    def __init__(self) -> None:
        self.snapshots: list[RatedSnapshot] = []
        self._score = torch.zeros(0, 0, dtype=torch.float64)
        self._ratings: tuple[Tensor, Tensor] | None = None  # cached until a result is added

    def add(self, snapshot: RatedSnapshot) -> int:
        """Adds a snapshot and returns its index."""
        self.snapshots.append(snapshot)
        grown = torch.zeros(len(self.snapshots), len(self.snapshots), dtype=torch.float64)
        grown[:-1, :-1] = self._score
        self._score, self._ratings = grown, None
        return len(self.snapshots) - 1

    def index(self, team: str, number: int) -> int:
        """Returns the index of a team's snapshot."""
        return next(i for i, s in enumerate(self.snapshots) if (s.team, s.number) == (team, number))

    def add_result(self, index: int, opponent: int, *, score: float, games: float) -> None:
        """Adds the score of a snapshot in a number of games against another; draws count 0.5."""
        self._score[index, opponent] += score
        self._score[opponent, index] += games - score
        self._ratings = None

    def ratings(self) -> tuple[Tensor, Tensor]:
        """Returns Elo ratings [P] and their standard errors [P], relative to the first snapshot."""
        if self._ratings is None:
            self._ratings = elo(self._score)
        return self._ratings

    def state_dict(self) -> dict[str, Any]:
        """Returns the snapshots and their scores against each other."""
        return {"snapshots": [[s.team, s.number, s.steps] for s in self.snapshots], "score": self._score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self.snapshots = [RatedSnapshot(*entry) for entry in state["snapshots"]]
        self._score, self._ratings = state["score"].to("cpu", torch.float64), None
