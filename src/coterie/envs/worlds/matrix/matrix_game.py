"""Base classes of the matrix games: payoff tables, exact returns, and rendering."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.cell_tables import Cell, Line, Table, draw_table
from coterie.envs.worlds.world import Observation, Outcome, State, World

MAX_JOINT_ACTIONS = 1_000_000
"""Maximum number of joint actions of a table."""

MixedStrategies = tuple[tuple[float, ...], ...]
"""A mixed strategy for every player: the probabilities of its choices."""


class MatrixConfig(BaseModel):
    """Settings of all matrix games."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    episode_limit: int = Field(25, ge=1, le=10**9)
    """Rounds per episode."""
    terminate_at_limit: bool | None = None
    """Terminate episodes after the last round instead of truncating them; None for True in one-round episodes only."""
    last_action: bool = False
    """Observe the choices of all players in the previous round; zeros in the first."""


@dataclass(frozen=True)
class MatrixGame:
    """Payoff tables of one or several stages for N players with A choices each, A^N joint actions in row-major order.

    Attributes:
        name: name of the world.
        choices: names of the choices.
        players: number of players N.
        payoff: [stages, A^N, P], P = 1 for a common payoff, else N.
        next_stage: [stages, A^N] int64, the stage after a joint action.
        metric_increment: [stages, A^N], contribution of a round to the metric.
        metric: name of the metric.
        episode_limit: rounds per episode.
        terminate_at_limit: the last round terminates the episode.
        last_action: players observe the last joint action.
        stages: names of the stages, shown in pictures.
    """

    name: str
    choices: tuple[str, ...]
    players: int
    payoff: Tensor
    next_stage: Tensor
    metric_increment: Tensor
    metric: str
    episode_limit: int
    terminate_at_limit: bool
    last_action: bool
    stages: tuple[str, ...] = ("",)

    @property
    def has_common_payoff(self) -> bool:
        """True if all players share one payoff."""
        return self.payoff.shape[-1] == 1

    @property
    def symmetric(self) -> bool:
        """True if two players with payoffs of their own can be exchanged, and do not observe which one they are."""
        if self.players != 2 or self.has_common_payoff or self.last_action or len(self.stages) > 1:
            return False
        row, column = self.payoff.view(len(self.choices), len(self.choices), 2).unbind(-1)
        return torch.equal(row, column.T)


class MatrixWorld(World):
    """Rounds of a matrix game in which all players choose simultaneously.

    Args:
        game: the game.
        with_state: whether timesteps include the state, which equals the observation.
    """

    reset_noise_size = 0

    def __init__(self, game: MatrixGame, with_state: bool):
        self.game, self.terminate_at_limit = game, game.terminate_at_limit
        self._num_choices = len(game.choices)
        self._with_state = with_state
        size = len(game.stages) + (game.players * self._num_choices if game.last_action else 0)
        observation_space, action_space = spaces.Box(0.0, 1.0, (size,)), spaces.Discrete(self._num_choices)
        if game.has_common_payoff:
            players = {"agent": tuple(f"agent_{i}" for i in range(game.players))}
        else:
            players = {name: (name,) for name in ("row", "column")}
        self.spec = EnvSpec(
            name=f"matrix/{game.name}",
            roles=tuple(
                RoleSpec(
                    name=name,
                    group=name,
                    agents=agents,
                    observation_space=observation_space,
                    action_space=action_space,
                    choice_names=(tuple(game.choices),),
                )
                for name, agents in players.items()
            ),
            state_sizes={"global": size} if with_state else {},
            has_group_reward=game.has_common_payoff,
            metrics=(game.metric,),
            episode_limit=game.episode_limit,
            symmetric=game.symmetric,
        )
        self._tables: dict[torch.device, dict[str, Tensor]] = {}

    # ---------------------------------------------------------------------------------------- World

    def reset(self, noise: Tensor) -> State:
        num_envs, device = len(noise), noise.device
        stage = torch.zeros(num_envs, dtype=torch.int64, device=device)
        return {
            "stage": stage,
            "last_stage": stage - 1,  # -1 before the first round
            "last_choice": torch.zeros(num_envs, self.game.players, dtype=torch.int64, device=device),
            "metric": torch.zeros(num_envs, device=device),
            "return": torch.zeros(num_envs, self.game.payoff.shape[-1], device=device),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        actions = [action[role.name].discrete for role in self.spec.roles]
        choice = torch.cat([each[..., 0] for each in actions if each is not None], dim=1)
        tables, stage = self._tables_on(choice.device), state["stage"]
        joint = (choice * tables["stride"]).sum(1)
        payoff = tables["payoff"][stage, joint]
        metric = state["metric"] + tables["metric_increment"][stage, joint]
        next_state = {
            "stage": tables["next_stage"][stage, joint],
            "last_stage": stage,
            "last_choice": choice,
            "metric": metric,
            "return": state["return"] + payoff,
        }
        zeros = torch.zeros(choice.shape, device=choice.device)
        return next_state, Outcome(
            reward=zeros if self.game.has_common_payoff else payoff,
            group_reward=payoff if self.game.has_common_payoff else None,
            metrics=lambda: {self.game.metric: metric},
        )

    def observe(self, state: State) -> Observation:
        features = one_hot(state["stage"], len(self.game.stages)).float()
        if self.game.last_action:
            last_choice = one_hot(state["last_choice"], self._num_choices).float()
            last_choice = last_choice * (state["last_stage"] >= 0)[:, None, None]
            features = torch.cat((features, last_choice.flatten(1)), dim=1)
        obs = {role.name: features[:, None].expand(-1, role.n, -1).contiguous() for role in self.spec.roles}
        return Observation(obs, state={"global": features} if self._with_state else {})

    def _tables_on(self, device: torch.device) -> dict[str, Tensor]:
        """Returns the tables on a device."""
        if device not in self._tables:
            tables = {
                "payoff": self.game.payoff,
                "next_stage": self.game.next_stage,
                "metric_increment": self.game.metric_increment,
                "stride": torch.tensor([self._num_choices**i for i in reversed(range(self.game.players))]),
            }
            self._tables[device] = {name: table.to(device) for name, table in tables.items()}
        return self._tables[device]

    # ---------------------------------------------------------------------------------------- exact values

    def payoffs(self, stage: int = 0) -> Tensor:
        """Returns the payoff table of a stage: [A, ..., A] for a common payoff, else [A, ..., A, N]."""
        shape = [self._num_choices] * self.game.players
        payoff = self.game.payoff[stage]
        return payoff.view(shape) if self.game.has_common_payoff else payoff.view(*shape, self.game.players)

    def _mean_returns(self) -> list[float]:
        """Returns the exact mean return of uniform random play, one per payoff."""
        payoff = self.game.payoff.double()
        value = payoff.new_zeros(len(payoff), payoff.shape[-1])
        for _ in range(self.game.episode_limit):
            value = (payoff + value[self.game.next_stage]).mean(1)
        return value[0].tolist()

    # ---------------------------------------------------------------------------------------- rendering

    def render(self, state: State, size: int) -> np.ndarray:
        return draw_table(self.picture(state), size)

    def picture(self, state: State) -> Table:
        """Returns the payoff table of two players with the last joint action, or the choices of more than two."""
        stage, last_stage = int(state["stage"][0]), int(state["last_stage"][0])
        last_choice = tuple(state["last_choice"][0].tolist()) if last_stage == stage else None
        names = [f"return of {role.name}" for role in self.spec.roles] if len(self.spec.roles) > 1 else ["return"]
        return Table(
            title=self.game.name,
            lines=self._payoff_lines(stage, last_choice) if self.game.players == 2 else self._choice_lines(last_choice),
            columns=self.game.choices if self.game.players == 2 else (),
            captions=(self.game.stages[stage],) if self.game.stages[stage] else (),
            score=dict(zip(names, state["return"][0].tolist(), strict=True)),
        )

    def _payoff_lines(self, stage: int, last_choice: tuple[int, ...] | None) -> tuple[Line, ...]:
        game, choices = self.game, range(self._num_choices)
        table = game.payoff[stage].view(self._num_choices, self._num_choices, -1)
        best = float(game.payoff.sum(-1).max())
        lines = []
        for i in choices:
            cells = []
            for j in choices:
                payoff = table[i, j].tolist()
                next_stage = int(game.next_stage[stage, i * self._num_choices + j])
                leads_on = game.stages[next_stage] != game.stages[stage]
                text = game.stages[next_stage] if leads_on else ", ".join(f"{x:g}" for x in payoff)
                # A best cell exists only for a common payoff.
                cells.append(
                    Cell(text, best=game.has_common_payoff and sum(payoff) == best, chosen=last_choice == (i, j))
                )
            lines.append(Line(game.choices[i], tuple(cells)))
        return tuple(lines)

    def _choice_lines(self, last_choice: tuple[int, ...] | None) -> tuple[Line, ...]:
        lines = []
        for i, agent in enumerate(self.spec.agents):
            chosen = last_choice[i] if last_choice else None
            cells = tuple(Cell(name, chosen=chosen == j) for j, name in enumerate(self.game.choices))
            lines.append(Line(agent, cells))
        return tuple(lines)


class CooperativeGame(MatrixWorld):
    """A game with a common payoff, given once as group reward; agents' own rewards are zero.

    A team's return is the sum of the payoffs. Code that gives the payoff to each agent reports N times as much.
    """

    def best_return(self) -> float:
        """Returns the exact maximum return of an episode."""
        payoff = self.game.payoff[..., 0].double()
        value = payoff.new_zeros(len(payoff))
        for _ in range(self.game.episode_limit):
            value = (payoff + value[self.game.next_stage]).amax(1)
        return float(value[0])

    def random_return(self) -> float:
        """Returns the exact mean return of uniform random play."""
        return self._mean_returns()[0]


class BimatrixGame(MatrixWorld):
    """A game of two players, `row` and `column`, which are groups with payoffs of their own."""

    equilibria: tuple[MixedStrategies, ...]
    """Nash equilibria of one round."""

    def random_returns(self) -> dict[str, float]:
        """Returns the exact mean return of uniform random play, by group."""
        return dict(zip(self.spec.groups, self._mean_returns(), strict=True))

    def equilibrium_returns(self, index: int = 0) -> dict[str, float]:
        """Returns the exact mean return when an equilibrium is played in every round, by group."""
        row, column = (torch.tensor(p, dtype=torch.float64) for p in self.equilibria[index])
        payoff = torch.einsum("i,ijp,j->p", row, self.payoffs().double(), column) * self.game.episode_limit
        return dict(zip(self.spec.groups, payoff.tolist(), strict=True))


def cooperative_game(name: str, table: Any, choices: tuple[str, ...], config: MatrixConfig) -> MatrixGame:
    """Returns a game with one table of common payoffs.

    Its metric `optimal` is the fraction of rounds with the maximum payoff.

    Args:
        name: name of the world.
        table: payoffs, [A, ..., A].
        choices: names of the choices.
        config: settings.
    """
    payoff = torch.as_tensor(table, dtype=torch.float32)
    flat = payoff.reshape(1, -1)
    return MatrixGame(
        name=name,
        choices=choices,
        players=payoff.ndim,
        payoff=flat[..., None].contiguous(),
        next_stage=torch.zeros(flat.shape, dtype=torch.int64),
        metric_increment=(flat == flat.max()).float() / config.episode_limit,
        metric="optimal",
        episode_limit=config.episode_limit,
        terminate_at_limit=_terminates_at_limit(config),
        last_action=config.last_action,
    )


def bimatrix_game(name: str, payoffs: tuple[Any, Any], choices: tuple[str, ...], config: MatrixConfig) -> MatrixGame:
    """Returns a game of two players.

    Its metric `first_choice` is the frequency of the first choice among the choices of both players.

    Args:
        name: name of the world.
        payoffs: tables [A, A] of row's and column's payoffs, indexed by row's and column's choice.
        choices: names of the choices.
        config: settings.
    """
    payoff = torch.stack([torch.as_tensor(table, dtype=torch.float32) for table in payoffs], dim=-1)
    first_choice = torch.zeros(payoff.shape[:2])
    first_choice[0] += 0.5
    first_choice[:, 0] += 0.5
    return MatrixGame(
        name=name,
        choices=choices,
        players=2,
        payoff=payoff.reshape(1, -1, 2),
        next_stage=torch.zeros(1, first_choice.numel(), dtype=torch.int64),
        metric_increment=first_choice.reshape(1, -1) / config.episode_limit,
        metric="first_choice",
        episode_limit=config.episode_limit,
        terminate_at_limit=_terminates_at_limit(config),
        last_action=config.last_action,
    )


def _terminates_at_limit(config: MatrixConfig) -> bool:
    return config.episode_limit == 1 if config.terminate_at_limit is None else config.terminate_at_limit


def check_size(players: int, choices: int) -> None:
    """Raises ValueError if a payoff table would be too large."""
    if players * math.log(choices) > math.log(MAX_JOINT_ACTIONS) + 1e-9:  # logarithms, since the power may be huge
        raise ValueError(
            f"env.agents={players} with env.actions={choices}: {choices}^{players} joint actions, expected at most "
            f"{MAX_JOINT_ACTIONS:,}. Reduce either of them."
        )
