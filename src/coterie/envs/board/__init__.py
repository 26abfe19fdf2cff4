"""Games of two players who take turns on a board: connect four and tic-tac-toe, batched.

Who waits sees the board and has one choice, to wait. Both see the board alike: own stones first, then the other's. So
one policy can play either side.
"""

from __future__ import annotations

_HERE = "coterie.envs.board"

SCENARIOS: dict[str, str] = {
    "connect_four": f"{_HERE}.lines:ConnectFour",
    "tictactoe": f"{_HERE}.lines:TicTacToe",
}
"""World to `module:Class`; the class bears its configuration as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "connect_four": {"win_or_block": (f"{_HERE}.scripts:winners_or_blockers", ("red", "yellow"))},
    "tictactoe": {"win_or_block": (f"{_HERE}.scripts:winners_or_blockers", ("cross", "nought"))},
}
"""World to its scripts: name to `module:make` and the roles that it plays. See `coterie.envs.scripts`."""
