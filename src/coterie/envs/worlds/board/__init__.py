"""Two-player board games, batched: connect four and tic-tac-toe.

The waiting player observes the board and has a single legal action, to wait. Both players observe the board in the same
format, own stones first, so one policy can play either side.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.board"

SCENARIOS: dict[str, str] = {
    "connect_four": f"{_HERE}.line_games:ConnectFour",
    "tictactoe": f"{_HERE}.line_games:TicTacToe",
}
"""World name to `module:Class`; the class holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "connect_four": {"win_or_block": (f"{_HERE}.line_games:winners_or_blockers", ("red", "yellow"))},
    "tictactoe": {"win_or_block": (f"{_HERE}.line_games:winners_or_blockers", ("cross", "nought"))},
}
"""World name to its scripts: script name to `module:make` and the roles it can play. See
`coterie.envs.script_registry`.
"""
