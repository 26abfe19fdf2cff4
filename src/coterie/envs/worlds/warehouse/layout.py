"""The floor of a warehouse: shelves, highways and goals as tables of padded cells.

Rows and columns count from the upper left corner. A cell is an index into the floor with a border of `sensor_range`
cells on every side, so that windows around an agent never leave the table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

UP, DOWN, LEFT, RIGHT = range(4)
STEPS: tuple[tuple[int, int], ...] = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""Displacement (column, row) of the directions up, down, left and right."""


@dataclass(frozen=True)
class Floor:
    """A floor plan.

    Attributes:
        rows: One string per row: `x` shelf, `.` highway, `g` goal.
        goals: Goals as (column, row), in the order in which deliveries are counted.
    """

    rows: tuple[str, ...]
    goals: tuple[tuple[int, int], ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in cells."""
        return len(self.rows), len(self.rows[0])

    @property
    def num_shelves(self) -> int:
        return sum(row.count("x") for row in self.rows)


@functools.cache
def regular_floor(shelf_rows: int, shelf_columns: int, column_height: int) -> Floor:
    """Blocks of 2 x `column_height` shelves between highways, with two goals in the middle of the last row.

    The block above the goals is left out, so that agents can queue there.

    Raises:
        ValueError: If the number of columns is even.
    """
    if shelf_columns % 2 == 0:
        raise ValueError(f"shelf_columns={shelf_columns}: expected an odd number, because the goals are in the middle")
    height, width = (column_height + 1) * shelf_rows + 2, 3 * shelf_columns + 1
    goals = ((width // 2 - 1, height - 1), (width // 2, height - 1))

    def is_highway(x: int, y: int) -> bool:
        queue = y > height - (column_height + 3) and x in (width // 2 - 1, width // 2)
        return x % 3 == 0 or y % (column_height + 1) == 0 or y == height - 1 or queue

    rows = [["." if is_highway(x, y) else "x" for x in range(width)] for y in range(height)]
    for x, y in goals:
        rows[y][x] = "g"
    return Floor(tuple("".join(row) for row in rows), goals)


@functools.cache
def drawn_floor(layout: str) -> Floor:
    """Parses a drawing with one line per row, separated by line breaks or `/`. Capital letters and spaces are allowed.

    Raises:
        ValueError: If it has other characters, lines of different lengths, no goal or no shelf.
    """
    rows = tuple(layout.strip().replace(" ", "").replace("/", "\n").lower().split("\n"))
    rows = tuple(row.strip() for row in rows)
    unknown = sorted(set("".join(rows)) - set("xg."))
    if unknown:
        raise ValueError(f"layout: '{unknown[0]}' is none of x (shelf), . (highway) and g (goal)")
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError(f"layout: lines of {', '.join(str(len(row)) for row in rows)} cells. Use lines of one length")
    goals = tuple((x, y) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "g")
    if not goals:
        raise ValueError("layout: there is no goal. Mark at least one cell with g")
    if not any("x" in row for row in rows):
        raise ValueError("layout: there is no shelf. Mark at least one cell with x")
    return Floor(rows, goals)


@dataclass(frozen=True)
class Tables:
    """Constants of a floor on one device. P is the number of padded cells, C of cells, S of shelves, G of goals.

    Attributes:
        width: Width of the padded floor.
        ahead: [P * 4] int64, cell ahead at index cell * 4 + direction; the cell itself at a wall.
        highway: [P] bool.
        cells: [C] int64, cells of the floor, row by row.
        homes: [S] int64, cells of the shelves, row by row. Shelf s + 1 starts on homes[s].
        goals: [G] int64.
        place: [P, 2], column and row.
        fraction: [P, 2], column and row as fractions of the floor.
        window: [K] int64, offsets of the cells that an agent observes, row by row.
        own: [P * 4, 8], what an agent without a shelf observes of itself, at index cell * 4 + direction.
        seen: [15, 7], what is observed of a cell at index 3 a + s, with a = 0 without an agent, else 1 + its direction,
            and s = 0 without a shelf, 1 with one, 2 with a requested one.
        turn: [4, K] int64, order of the window that turns it into the direction of an agent.
        turned: [5 * 4] int64, direction after an action at index action * 4 + direction.
    """

    width: int
    ahead: Tensor
    highway: Tensor
    cells: Tensor
    homes: Tensor
    goals: Tensor
    place: Tensor
    fraction: Tensor
    window: Tensor
    own: Tensor
    seen: Tensor
    turn: Tensor
    turned: Tensor


@functools.cache
def tables(floor: Floor, sensor_range: int, normalized: bool, device: torch.device) -> Tables:
    """Builds the tables of a floor.

    Args:
        floor: The floor plan.
        sensor_range: Width of the border, and reach of an agent's window.
        normalized: True if agents observe their place as a fraction of the floor instead of in cells.
        device: Device of the tables.
    """
    (height, width), border = floor.size, sensor_range
    padded = width + 2 * border
    num_cells = padded * (height + 2 * border)

    def cell(x: int, y: int) -> int:
        return (y + border) * padded + x + border

    ahead = torch.arange(num_cells).repeat_interleave(4)
    highway, place = torch.zeros(num_cells, dtype=torch.bool), torch.zeros(num_cells, 2)
    for y in range(height):
        for x in range(width):
            highway[cell(x, y)] = floor.rows[y][x] != "x"
            place[cell(x, y)] = torch.tensor([x, y], dtype=torch.float32)
            for direction, (dx, dy) in enumerate(STEPS):
                target = cell(min(max(x + dx, 0), width - 1), min(max(y + dy, 0), height - 1))
                ahead[cell(x, y) * 4 + direction] = target
    cells = [cell(x, y) for y in range(height) for x in range(width)]
    homes = [at for at in cells if not highway[at]]
    reach = range(-border, border + 1)
    window = torch.tensor([dy * padded + dx for dy in reach for dx in reach])
    fraction = place / torch.tensor([max(width - 1, 1), max(height - 1, 1)])
    own = torch.zeros(num_cells, 4, 8)
    own[:, :, :2] = (fraction if normalized else place)[:, None]
    own[:, :, 3:7] = torch.eye(4)
    own[:, :, 7] = highway[:, None].float()
    found = Tables(
        width=padded,
        ahead=ahead,
        highway=highway,
        cells=torch.tensor(cells),
        homes=torch.tensor(homes),
        goals=torch.tensor([cell(x, y) for x, y in floor.goals]),
        place=place,
        fraction=fraction,
        window=window,
        own=own.flatten(0, 1),
        seen=_seen(),
        turn=_turn(2 * border + 1),
        turned=torch.tensor([*range(4), *range(4), LEFT, RIGHT, DOWN, UP, RIGHT, LEFT, UP, DOWN, *range(4)]),
    )
    return replace(found, **{item.name: _on(getattr(found, item.name), device) for item in fields(Tables)})


def _on(value: int | Tensor, device: torch.device) -> int | Tensor:
    return value if isinstance(value, int) else value.to(device)


def _seen() -> Tensor:
    """[15, 7]: presence and one-hot direction of an agent (up if there is none), shelf, and request."""
    agent = torch.cat((torch.zeros(1, 5), torch.cat((torch.ones(4, 1), torch.eye(4)), 1)))
    agent[0, 1] = 1
    shelf = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    return torch.cat((agent.repeat_interleave(3, 0), shelf.repeat(5, 1)), 1)


def _turn(side: int) -> Tensor:
    """[4, side * side]: indices of a window rotated by 0, 180, 270 and 90 degrees for up, down, left and right."""
    window = torch.arange(side * side).view(side, side)
    return torch.stack([torch.rot90(window, quarters).flatten() for quarters in (0, 2, 3, 1)])
