"""A player of the games of lines by a rule: it wins if it can and blocks if it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.board.lines import Rules
from coterie.schema import Choice
from coterie.types import Action, Row, TeamSpec


def winners_or_blockers(team: TeamSpec, env: Choice) -> Callable[[Row], dict[str, Action]]:
    """Either side of a game of lines, or both, by `win_or_block`."""
    config: Any = env.params
    rules = Rules(config, env.name == "board/connect_four")

    def act(row: Row) -> dict[str, Action]:
        chosen = {}
        for role in team.roles:
            seen, mask = row.obs[role.name][:, 0], row.action_mask[role.name][:, 0]
            move = win_or_block(rules, seen[:, : rules.squares], seen[:, rules.squares : -1], mask)
            chosen[role.name] = Action(move.view(-1, 1, 1))
        return chosen

    return act


def win_or_block(rules: Rules, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """The move [B] of a player with stones `own` against `other`, [B, C] each; mask: [B, moves + 1].

    The first that there is of: a move that wins; one without which the other wins; one that does not let the other win
    on top of it; among several, the square through which most lines go.
    """
    free = mask[:, :-1]
    taken = own + other
    square = rules.squares_of(taken)
    stone = one_hot(square, rules.squares).to(own)  # [B, moves, C]
    wins, blocks = (rules.won(stones.unsqueeze(1) + stone) for stones in (own, other))
    score = rules.lines.to(own).sum(1)[square] + 1e4 * blocks + 1e6 * wins
    if rules.falls:
        above = square + rules.columns
        there = above < rules.squares
        next_stone = one_hot(above.clamp(max=rules.squares - 1), rules.squares).to(own)
        score = score - 1e3 * (rules.won(other.unsqueeze(1) + next_stone) & there)
    best = score.masked_fill(~free, -1e9).argmax(1)
    return torch.where(free.any(1), best, rules.moves)
