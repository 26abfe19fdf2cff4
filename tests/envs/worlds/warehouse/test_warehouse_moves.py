"""Conflicts between agents are resolved as by the package, in crowded random states and in cases with known answers."""

from __future__ import annotations

import random
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.envs.worlds.warehouse import moves
from fakecuda import CUDA, fake_cuda
from rwareplay import package_moves, world_of

CPU = torch.device("cpu")


def open_floor(num_agents: int, height: int, width: int) -> Any:
    """A floor without shelves but one in a corner."""
    rows = ["." * width] * (height - 1) + ["x" + "g" * (width - 1)]
    return world_of(f"tiny-{num_agents}ag", layout="/".join(rows), request_queue_size=0)


def crowd(world: Any, count: int, seed: int, forward: float) -> tuple[Tensor, Tensor, Tensor]:
    """Random cells [B, N], those that agents want, and who is on them."""
    generator = torch.Generator().manual_seed(seed)
    floor, n = world.tables(CPU), world.config.agents
    cell = floor.cells[torch.rand(count, len(floor.cells), generator=generator).argsort(1)[:, :n]]
    direction = torch.randint(0, 4, (count, n), generator=generator)
    drives = torch.rand(count, n, generator=generator) < forward
    target = torch.where(drives, floor.ahead[cell * 4 + direction], cell)
    return cell, target, occupants(world, cell, target)


def occupants(world: Any, cell: Tensor, target: Tensor) -> Tensor:
    numbers = torch.arange(cell.shape[1]).expand_as(cell)
    grid = torch.full((len(cell), len(world.tables(CPU).highway)), cell.shape[1]).scatter(1, cell, numbers)
    return grid.gather(1, target)


CROWDS = [(3, 3, 3, 300), (7, 5, 6, 300), (19, 9, 9, 200), (30, 16, 16, 100)]


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "height", "width", "count"), CROWDS)
def test_the_same_agents_move_as_in_the_package(agents: int, height: int, width: int, count: int):
    world = open_floor(agents, height, width)
    cell, target, occupant = crowd(world, count, agents, forward=0.9)
    floor = world.tables(CPU)
    expected = np.array([package_moves(*floor.place[pair].long().tolist()) for pair in torch.stack((cell, target), 1)])
    found = moves.moving(cell, target, occupant, world.probes).numpy()
    np.testing.assert_array_equal(found, expected)
    assert expected.any()
    assert not expected.all()


@pytest.mark.slow
def test_a_gpu_moves_the_same_agents():
    world = open_floor(12, 7, 9)
    given = crowd(world, 200, 5, forward=0.9)
    expected = moves.moving(*given, world.probes)
    assert len(expected.unique()) == 2
    with fake_cuda():
        cell, target, occupant = (x.to(CUDA) for x in given)
        found = moves.moving(cell, target, occupant, world.probes)
        assert torch.equal(found.cpu(), expected)


def test_sets_are_visited_in_the_order_of_python():
    random.seed(1)
    rows, columns, num_sets = 20, 16, 200
    sizes = moves.table_sizes(60)
    assert sizes == [8, 32, 128]
    probes = {size: moves.probe_table(columns, rows, 0, size, CPU) for size in sizes}
    places = [(x, y) for y in range(rows) for x in range(columns)]
    for most in (4, 18, 60):
        chosen = [random.sample(range(len(places)), most) for _ in range(num_sets)]
        count = torch.randint(1, most + 1, (num_sets,), generator=torch.Generator().manual_seed(most))
        _, order = moves.set_order(torch.tensor(chosen), count, probes)
        for cells, n, found in zip(chosen, count.tolist(), order.tolist(), strict=True):
            filled: set[tuple[int, int]] = set()
            for cell in cells[:n]:
                filled.add(places[cell])
            assert [places[cells[k]] for k in found[:n]] == list(filled)


def test_the_order_of_sets_decides_conflicts_of_few_among_many():
    """Without it, the first agent wins, which differs from the package in this state."""
    world = open_floor(4, 8, 8)
    cell, target, occupant = crowd(world, 4000, 3, forward=1.0)
    found = moves.moving(cell, target, occupant, world.probes)
    rivals = (target[:, 0] == target[:, 1]) & (occupant[:, 0] == 4) & found[:, 1]
    assert rivals.any()
    row = int(rivals.nonzero()[0])
    place = world.tables(CPU).place
    assert package_moves(place[cell[row]].long().tolist(), place[target[row]].long().tolist()) == found[row].tolist()
    assert networkx.__version__ >= "3"
