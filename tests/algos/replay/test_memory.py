"""Memory of replay buffers: sizes before they are allocated, and what is suggested if they do not fit."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from gymnasium import spaces

from coterie.algos.replay import memory
from coterie.algos.replay.memory import MemoryReservation, no_memory_check
from coterie.algos.replay.prioritized import SumTree
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec

CPU, META = torch.device("cpu"), torch.device("meta")


def spec_of(**changes: Any) -> ReplaySpec:
    """Rollouts of one timestep of one environment with one agent, which takes numbers."""
    role = RoleSpec("agent", "agent", ("agent_0",), spaces.Box(-9, 9, (3,)), spaces.Box(-1.0, 1.0, (2,)))
    settings = {
        "team": EnvSpec("one", (role,), {}).default_teams()[0], "num_envs": 1, "rollout_length": 1, "capacity": 1000,
        "sequence_length": 1, "sequence_start": "timestep", "seed": 0, "device": CPU,
    }  # fmt: skip
    return ReplaySpec(**(settings | changes))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Free bytes by storage; a step needs 100 bytes, and there are no reservations."""
    found: dict[str, int | None] = {"device": 10**9, "cpu": 10**9, "disk": 10**9}
    monkeypatch.setattr(memory, "free_bytes", lambda storage, device: found[storage])
    monkeypatch.setattr(memory, "expected_nbytes", lambda spec: 100 * spec.capacity)
    monkeypatch.setattr(memory, "_reservations", type(memory._reservations)())
    monkeypatch.setattr(gc, "collect", lambda: 0)  # takes long next to other tests
    return found


def message(spec: ReplaySpec) -> str:
    with pytest.raises(UserError) as refused:
        MemoryReservation(spec)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("room", "size"), [(99_999, 990), (12_399, 120), (1_599, 15), (799, 7), (100, 1)])
def test_the_size_that_fits_has_at_most_two_digits(free: dict[str, int | None], room: int, size: int):
    free["device"] = room
    assert message(spec_of()).endswith(f" are free. Set algo.buffer_size={size} or algo.buffer_storage=disk.")


@pytest.mark.parametrize("room", [0, 99])
def test_no_size_is_suggested_if_not_even_a_step_fits(free: dict[str, int | None], room: int):
    free["device"] = room
    assert message(spec_of()) == (
        "algo.buffer_size=1000 does not fit: a replay buffer of 1,000 steps needs 100 kB of memory, and "
        f"{room} bytes are free. Set algo.buffer_storage=disk."
    )


def test_a_buffer_may_take_all_free_memory_or_an_unknown_amount(free: dict[str, int | None]):
    for room in (100_000, None):
        free["device"] = room
        assert MemoryReservation(spec_of()).nbytes == 100_000
    free["device"] = 99_999
    assert "does not fit" in message(spec_of())


@pytest.mark.parametrize(
    ("room", "advice"),
    [
        (100_000, "algo.buffer_storage=disk."),
        (None, "algo.buffer_storage=disk."),
        (99_999, "algo.buffer_storage=disk and TMPDIR to a folder on a larger disk."),
    ],
)
def test_a_disk_is_suggested_with_another_folder_if_it_is_too_small(
    free: dict[str, int | None], room: int | None, advice: str
):
    free |= {"cpu": 50_000, "disk": room}
    assert message(spec_of(storage="cpu")).endswith(f"50 kB are free. Set algo.buffer_size=500 or {advice}")


def test_a_buffer_on_a_full_disk_needs_another_folder(free: dict[str, int | None]):
    free["disk"] = 50_000
    found = message(spec_of(storage="disk"))
    assert "needs 100 kB of the temporary folder's disk, and 50 kB are free" in found
    assert found.endswith("Set algo.buffer_size=500 or TMPDIR to a folder on a larger disk.")


def test_memory_of_a_device_has_its_name(free: dict[str, int | None]):
    free["device"] = 50_000
    assert "needs 100 kB of meta, and 50 kB are free" in message(spec_of(device=META))
    assert "needs 100 kB of memory, and" not in message(spec_of(device=META))


def test_reservations_count_where_the_data_will_be(free: dict[str, int | None]):
    """60 of 100 kB are reserved in memory; reservations of more than is free leave nothing."""
    free |= {"device": 100_000, "disk": 100_000}
    first = MemoryReservation(spec_of(capacity=600))
    assert "and 40 kB are free" in message(spec_of())
    assert [MemoryReservation(spec_of(**where)).place for where in ({"storage": "disk"}, {"device": META})] == [
        *("disk", "meta")
    ]
    free["device"] = 50_000
    assert "and 0 bytes are free" in message(spec_of())
    del first
    assert MemoryReservation(spec_of(capacity=500)).place == "cpu"


def test_nothing_is_checked_within_the_context_alone(free: dict[str, int | None]):
    free["device"] = 0
    with no_memory_check():
        assert MemoryReservation(spec_of()).nbytes == 100_000
    assert "does not fit" in message(spec_of())
    with pytest.raises(UserError, match="at least 1"), no_memory_check():
        spec_of(capacity=0).require_sequences()
    assert "does not fit" in message(spec_of())


@pytest.mark.parametrize(("num_envs", "timesteps"), [(1, 40_000), (64, 1000)])
def test_the_index_of_priorities_has_the_size_of_its_tree_to_one_percent(num_envs: int, timesteps: int):
    """And a byte per position, which marks the starts of sequences."""
    spec = spec_of(num_envs=num_envs, capacity=num_envs * timesteps, priority_alpha=0.5)
    positions = num_envs * (timesteps + 1)
    found = memory.index_nbytes(spec)
    assert found == pytest.approx(positions + SumTree(positions, CPU).nbytes, rel=0.01)
    assert isinstance(found, int)


ROLES = (
    RoleSpec("a", "a", ("a_0", "a_1"), spaces.Dict(eye=spaces.Box(0, 255, (4, 4), "uint8"), on=spaces.Discrete(3)),
             spaces.Tuple((spaces.MultiDiscrete([3, 300]), spaces.Box(-1.0, 1.0, (2,))))),
    RoleSpec("b", "b", ("b_0",), spaces.Box(-1, 1, (5,), "float64"), spaces.Discrete(4)),
)  # fmt: skip


def test_bytes_of_a_full_buffer_by_hand():
    """Per environment and timestep; teams `a` and `b` read each other. Numbers take four bytes, choices two."""
    team_a, team_b = EnvSpec("two", ROLES, {"global": 6}, has_group_reward=True).default_teams()
    obs = {"a": 2 * (16 + 8), "b": 5 * 4}
    mask, agents = {"a": 2 * 303, "b": 4}, {"a": 2, "b": 1}
    action = {"a": 2 * (2 * 2 + 2 * 4), "b": 2}
    for own, other, team in (("a", "b", team_a), ("b", "a", team_b)):
        spec = spec_of(
            team=team, other_roles=team.other_roles, states=("global",), num_envs=3, rollout_length=4, capacity=24,
            sequence_start="rollout", hidden_state={"h": torch.zeros(3, agents[own], 7)},
        )  # fmt: skip
        n = agents[own]
        per_timestep = obs[own] + mask[own] + 6 * 4 + 2 * n + 1
        per_timestep += obs[other] + mask[other] + agents[other] + action[other]
        per_timestep += action[own] + 4 * n + 4 * len(team.groups) + 2 * n + 2
        hidden, index = 3 * (3 * n * 7 * 4), 9 * 3 + 8 * 3 * 3
        assert memory.expected_nbytes(spec) == 9 * 3 * per_timestep + hidden + index
