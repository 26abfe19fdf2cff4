"""Scripted player for line games: wins if possible and blocks if necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.board.line_games import Rules


def winners_or_blockers(team: TeamSpec, env: Choice) -> Callable[[Timestep], dict[str, Action]]:
    """Returns a scripted policy for one or both sides of a line game, see `win_or_block`."""
    config: Any = env.params
    rules = Rules(config, env.name == "board/connect_four")

    def act(timestep: Timestep) -> dict[str, Action]:
        chosen = {}
        for role in team.roles:
            obs, mask = timestep.obs[role.name][:, 0], timestep.action_mask[role.name][:, 0]
            move = win_or_block(rules, obs[:, : rules.squares], obs[:, rules.squares : -1], mask)
            chosen[role.name] = Action(move.view(-1, 1, 1))
        return chosen

    return act


def win_or_block(rules: Rules, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """Returns the move [B] for a player with stones `own` against `other` (both [B, C]).

    The first available of: a winning move; a move that blocks the opponent's win; a move that does not allow the
    opponent to win on top of it. Ties are broken by the number of lines through the square.

    Args:
        mask: Legal actions [B, moves + 1].
    """
    free = mask[:, :-1]
    taken = own + other
    square = rules.squares_of(taken)
    stone = one_hot(square, rules.squares).to(own)  # [B, moves, C]
    wins, blocks = (rules.won(stones.unsqueeze(1) + stone) for stones in (own, other))
    score = rules.lines.on(own.device).to(own.dtype).sum(1)[square] + 1e4 * blocks + 1e6 * wins
    if rules.falls:
        above = square + rules.columns
        inside = above < rules.squares
        next_stone = one_hot(above.clamp(max=rules.squares - 1), rules.squares).to(own)
        score = score - 1e3 * (rules.won(other.unsqueeze(1) + next_stone) & inside)
    best = score.masked_fill(~free, -1e9).argmax(1)
    return torch.where(free.any(1), best, rules.moves)
