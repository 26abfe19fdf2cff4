"""One step of a battle: attacks, shields, armor, healing, beams, movement, collisions, walls, and the enemy."""

from __future__ import annotations

import pytest
import torch

from coterie.envs.worlds.skirmish import combat
from coterie.envs.worlds.skirmish.units import UNITS
from skirmishplay import GONE, env_of, placed, row_of, step

ALONE = [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE]
"""On 3m: one marine against another at distance four, within reach."""


def test_unit_statistics_match_the_published_ones():
    marine, zealot, stalker = UNITS["marine"], UNITS["zealot"], UNITS["stalker"]
    assert (marine.health, marine.damage, marine.cooldown, marine.range, marine.speed) == (45, 6, 0.61, 5, 3.15)
    assert marine.period == pytest.approx(13.664)
    assert marine.pace * 8 == pytest.approx(1.125)  # a step
    assert (zealot.health + zealot.shield, stalker.health + stalker.shield) == (150, 160)
    assert stalker.hit(stalker) == 18  # 13, and 5 against armored
    assert stalker.wound(stalker) == 17
    assert stalker.hit(zealot) == 13
    assert zealot.hit(marine) == 16
    assert zealot.wound(UNITS["marauder"]) == 14
    assert marine.wound(UNITS["spine_crawler"]) == 4


@pytest.mark.parametrize("substeps", [1, 2, 4, 8])
def test_a_marine_kills_a_marine_with_its_eighth_hit_for_any_number_of_substeps(
    substeps: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(combat, "SUBSTEPS", substeps)
    monkeypatch.setattr(combat, "TICKS", 8 / substeps)
    env = env_of("3m", enemy_damage=0)
    placed(env, ALONE)
    seen = []
    for _ in range(12):
        result, _ = step(env, 0, "stop", "stop")
        seen.append(row_of(env, "health")[3])
    # At ticks 0, 13.7, 27.3, 41.0, 54.7, 68.3, 82.0 and 95.6, a step being 8 ticks.
    assert seen == [39, 33, 33, 27, 27, 21, 15, 15, 9, 9, 3, 0]
    assert result.episode_terminated.all()


def test_rounding_the_period_to_whole_steps_would_lower_the_attack_rate(monkeypatch: pytest.MonkeyPatch):
    # Control for the test above: a period rounded up to whole steps, 16 ticks, lands seven hits in 12 steps.
    env = env_of("3m", enemy_damage=0)
    placed(env, ALONE)
    env.world._table_cache.get(torch.zeros(())).period.fill_(16)  # type: ignore[attr-defined]
    for _ in range(12):
        step(env, 0, "stop", "stop")
    assert row_of(env, "health")[3] == 9


def test_units_approach_targets_out_of_reach_before_attacking():
    env = env_of("3m", enemy_damage=0)
    placed(env, [(10.0, 16.0), GONE, GONE, (16.0, 16.0), GONE, GONE], cooldown=[0] * 6)
    step(env, 0, "stop", "stop")
    # Both walk 0.25, until 5 + 2 x 0.375 are between them, and the ally shoots in the second half of the step.
    ally, enemy = row_of(env, "x")[0], row_of(env, "x")[3]
    assert enemy - ally == pytest.approx(5.5, abs=1e-3)
    assert row_of(env, "health")[3] == 39
    assert row_of(env, "health")[0] == 45


@pytest.mark.parametrize(
    ("order", "moved"), [("north", (0, 1)), ("south", (0, -1)), ("east", (1, 0)), ("west", (-1, 0))]
)
def test_moves_cover_the_distance_given_by_speed(order: str, moved: tuple[int, int]):
    env = env_of("3m")
    placed(env, [(10.0, 16.0), (10.0, 10.0), GONE, (30.0, 30.0), GONE, GONE])
    step(env, order, "stop", "stop")
    assert row_of(env, "x")[0] - 10 == pytest.approx(1.125 * moved[0], abs=1e-5)
    assert row_of(env, "y")[0] - 16 == pytest.approx(1.125 * moved[1], abs=1e-5)
    assert (row_of(env, "x")[1], row_of(env, "y")[1]) == (10, 10)


def test_armor_protects_health_but_not_shields():
    # A zealot hits a stalker: 2 x 8 from the shield, 2 x 7 from the health.
    env = env_of("3s_vs_3z")
    here = [(10.0, 16.0), GONE, GONE, (11.2, 16.0), GONE, GONE]
    initial = {"cooldown": [0.0] * 6, "health": [80, 0, 0, 100, 0, 0]}
    placed(env, here, **initial, shield=[80, 0, 0, 50, 0, 0])
    step(env, "stop", "stop", "stop")
    assert (row_of(env, "shield")[0], row_of(env, "health")[0]) == (64, 80)
    placed(env, here, **initial, shield=[0, 0, 0, 50, 0, 0])
    step(env, "stop", "stop", "stop")
    assert (row_of(env, "shield")[0], row_of(env, "health")[0]) == (0, 66)
    # The shield absorbs 10 of 16; armor reduces the other 6 to 14 / 16.
    placed(env, here, **initial, shield=[10, 0, 0, 50, 0, 0])
    step(env, "stop", "stop", "stop")
    assert (row_of(env, "shield")[0], row_of(env, "health")[0]) == (0, 74.75)


def test_shields_regenerate_ten_seconds_after_the_last_hit():
    env = env_of("3s_vs_3z")
    places = [(10.0, 16.0), (4.0, 4.0), (4.0, 30.0), (30.0, 30.0), GONE, GONE]
    calm = [216.0, 208.0, 216.0, 0.0, 0.0, 0.0]  # of 224 ticks
    placed(env, places, shield=[40, 40, 79.9, 50, 0, 0], calm=calm)
    step(env, "stop", "stop", "stop")
    shield = row_of(env, "shield")
    assert shield[0] == pytest.approx(40 + 2 * 8 / 22.4)
    assert shield[1] == 40
    assert shield[2] == 80  # never above its full
    assert shield[4] == 0  # nor on the fallen
    step(env, "stop", "stop", "stop")
    assert row_of(env, "shield")[1] > 40


def test_a_hit_interrupts_shield_regeneration():
    env = env_of("3s_vs_3z")
    here = [(10.0, 16.0), GONE, GONE, (11.2, 16.0), GONE, GONE]
    placed(env, here, calm=[500.0] * 6, shield=[40, 0, 0, 50, 0, 0])
    step(env, "stop", "stop", "stop")
    assert row_of(env, "shield")[0] == 24
    assert row_of(env, "calm")[0] == 0


def test_mutual_kills_are_possible_and_nobody_wins():
    env = env_of("3m")
    placed(env, ALONE, health=[6, 0, 0, 6, 0, 0])
    result, row = step(env, 0, "stop", "stop")
    assert result.episode_terminated.all()
    assert result.metrics["won"] == 0
    assert result.metrics["enemies_dead"] == 3
    assert result.metrics["allies_dead"] == 3
    assert not row.alive.any()


# ------------------------------------------------------------------------------------------------ healers and beams

MMM_GONE: list[tuple[float, float] | str] = [GONE] * 20


def mmm(**at: tuple[float, float]) -> list[tuple[float, float] | str]:
    """Positions on MMM: marauders 0 and 1, marines 2 to 8, medivac 9; the enemy has the same from 10 on."""
    places = list(MMM_GONE)
    for name, place in at.items():
        places[int(name[1:])] = place
    return places


def healths(**at: float) -> list[float]:
    return [at.get(f"u{i}", 0.0) for i in range(20)]


def heal(*orders: str | int) -> list[str | int]:
    return ["stop"] * 9 + list(orders)


def test_medivacs_heal_for_energy_up_to_full_health():
    env = env_of("MMM")
    here = mmm(u2=(6.0, 16.0), u9=(8.0, 16.0), u12=(31.0, 31.0))
    placed(env, here, health=healths(u2=10, u9=150, u12=45))
    step(env, *heal(2))
    assert row_of(env, "health")[2] == pytest.approx(10 + 12.6 * 8 / 22.4)  # 4.5
    assert row_of(env, "energy")[9] == pytest.approx(50 - 1.5 + 0.7875 * 8 / 22.4)
    placed(env, here, health=healths(u2=44, u9=150, u12=45))
    for _ in range(3):
        step(env, *heal(2))
        assert row_of(env, "health")[2] == 45
    # 1 / 3 was spent, and some has regenerated since.
    assert row_of(env, "energy")[9] == pytest.approx(50 - 1 / 3 + 3 * 0.7875 * 8 / 22.4)


def test_healing_without_energy_is_limited_by_regeneration():
    env = env_of("MMM")
    here = mmm(u2=(6.0, 16.0), u9=(8.0, 16.0), u12=(31.0, 31.0))
    placed(env, here, health=healths(u2=10, u9=150, u12=45), energy=[0.0] * 20)
    step(env, *heal(2))
    assert row_of(env, "health")[2] == pytest.approx(10 + 3 * 0.7875 * 4 / 22.4)


def test_enemy_medivac_heals_the_nearest_injured_teammate():
    env = env_of("MMM")
    here = mmm(u2=(2.0, 2.0), u12=(24.0, 16.0), u13=(26.0, 16.0), u19=(23.0, 16.0))
    placed(env, here, health=healths(u2=45, u12=45, u13=20, u19=150))
    step(env, *heal("stop"))
    assert row_of(env, "health")[13] == pytest.approx(24.5)
    assert row_of(env, "order")[19] == 13
    placed(env, here, health=healths(u2=45, u12=45, u13=45, u19=150))
    step(env, *heal("stop"))
    assert row_of(env, "order")[19] == 12


def test_a_side_with_only_a_medivac_has_lost():
    env = env_of("MMM")
    placed(env, mmm(u2=(6.0, 16.0), u12=(8.0, 16.0), u19=(9.0, 16.0)), health=healths(u2=45, u12=6, u19=150))
    result, _ = step(env, *["stop"] * 2, 2, *["stop"] * 7)
    assert result.metrics["won"] == 1
    placed(env, mmm(u2=(6.0, 16.0), u9=(2.0, 2.0), u12=(8.0, 16.0)), health=healths(u2=6, u9=150, u12=45))
    result, _ = step(env, *["stop"] * 10)
    assert result.episode_terminated.all()
    assert result.metrics["won"] == 0


def test_colossus_damages_units_next_to_its_target_but_not_behind_it():
    env = env_of("2c_vs_64zg")
    target, beside, far, behind = (16.0, 16.0), (16.0, 17.2), (16.0, 18.0), (17.5, 16.0)
    places = [(10.0, 16.0), GONE, target, beside, far, behind, *[GONE] * 60]
    placed(env, places)
    step(env, 0, "stop")
    # 2 x (10 + 5 against light) = 30 of 35
    assert row_of(env, "health")[2:6] == [5, 5, 35, 35]


# ---------------------------------------------------------------------------------------------- crowds and the field


def test_overlapping_units_are_pushed_apart():
    env = env_of("3m")
    placed(env, [(10.0, 16.0), (10.3, 16.0), (10.3, 17.0), (30.0, 30.0), GONE, GONE])
    for _ in range(12):
        step(env, "stop", "stop", "stop")
    x, y = row_of(env, "x"), row_of(env, "y")
    assert ((x[1] - x[0]) ** 2 + (y[1] - y[0]) ** 2) ** 0.5 == pytest.approx(0.75, abs=0.02)
    before = placed(env, [(10.0, 16.0), (10.75, 16.0), GONE, (30.0, 30.0), GONE, GONE]).alive
    step(env, "stop", "stop", "stop")
    assert before[0].tolist() == [True, True, False]
    assert row_of(env, "x")[:2] == pytest.approx([10, 10.75])


def test_flying_units_do_not_collide_with_ground_units():
    env = env_of("MMM")
    placed(env, mmm(u2=(6.0, 16.0), u9=(6.2, 16.0), u12=(31.0, 31.0)))
    step(env, *["stop"] * 10)
    assert row_of(env, "x")[2] == 6
    assert row_of(env, "x")[9] == pytest.approx(6.2)


def test_units_stay_on_the_field():
    env = env_of("3m")
    placed(env, [(0.1, 16.0), (16.0, 31.9), GONE, (30.0, 30.0), GONE, GONE])
    step(env, "west", "north", "stop")
    assert row_of(env, "x")[0] == 0
    assert row_of(env, "y")[1] == 32


def test_the_wall_blocks_units_except_at_the_gap():
    env = env_of("corridor")
    places = [(15.5, 10.0), (15.5, 16.0), *[GONE] * 4, (30.0, 30.0), *[GONE] * 23]
    placed(env, places)
    step(env, "east", "east", *["stop"] * 4)
    x = row_of(env, "x")
    assert x[0] < 16
    assert x[1] == pytest.approx(16.625)


def test_enemies_behind_the_wall_come_through_the_gap():
    env = env_of("corridor", enemy_damage=0)
    places = [(4.0, 4.0), *[GONE] * 5, (20.0, 28.0), *[GONE] * 23]
    placed(env, places)
    crossed = []
    for _ in range(40):
        before = row_of(env, "x")[6]
        step(env, *["stop"] * 6)
        if before > 16 >= row_of(env, "x")[6]:
            crossed.append(row_of(env, "y")[6])
    assert len(crossed) == 1
    assert abs(crossed[0] - 16) < 1.5


# ---------------------------------------------------------------------------------------------- the enemy's script


def test_enemies_pursue_visible_units_or_walk_to_the_team_start():
    env = env_of("3m")
    placed(env, [(23.0, 7.1), GONE, GONE, (23.0, 16.0), GONE, GONE])
    step(env, "stop", "stop", "stop")
    assert row_of(env, "order")[3] == 0
    assert row_of(env, "y")[3] == pytest.approx(16 - 1.125)
    placed(env, [(23.0, 6.9), GONE, GONE, (23.0, 16.0), GONE, GONE])
    step(env, "stop", "stop", "stop")
    assert row_of(env, "order")[3] == 6  # nobody
    assert row_of(env, "x")[3] == pytest.approx(23 - 1.125)
    assert row_of(env, "y")[3] == 16


def test_enemies_target_the_nearest_or_the_weakest_within_reach():
    places = [(10.0, 16.0), (9.0, 16.0), (8.0, 16.0), (13.0, 16.0), GONE, GONE]
    health = [45, 40, 10, 45, 0, 0]  # more points than the squared distances, which are not compared with them
    chosen = {}
    for focus in ("nearest", "weakest"):
        env = env_of("3m", enemy_focus=focus)
        placed(env, places, health=health)
        step(env, "stop", "stop", "stop")
        chosen[focus] = int(row_of(env, "order")[3])
    assert chosen == {"nearest": 0, "weakest": 2}
    placed(env, [*places[:2], (7.0, 16.0), *places[3:]], health=health)  # out of reach now
    step(env, "stop", "stop", "stop")
    assert row_of(env, "order")[3] == 1


def test_enemies_ignore_flying_units_they_cannot_hit():
    env = env_of("MMM")
    placed(env, mmm(u2=(2.0, 16.0), u9=(6.0, 16.0), u10=(8.0, 16.0)), cooldown=[0.0] * 20)
    step(env, *["stop"] * 10)
    assert row_of(env, "order")[10] == 2
    placed(env, mmm(u2=(2.0, 16.0), u9=(6.0, 16.0), u12=(8.0, 16.0)))  # a marine can
    step(env, *["stop"] * 10)
    assert row_of(env, "order")[12] == 9


def test_enemy_damage_can_differ_between_environments():
    env = env_of("3m", num_envs=3)
    placed(env, ALONE)
    shown = env.state_dict()
    shown["state"]["enemy_damage"] = torch.tensor([0.0, 1.0, 2.5])
    env.load_state_dict(shown)
    step(env, "stop", "stop", "stop")
    assert env.state_dict()["state"]["units"][:, 2, 0].tolist() == [45, 39, 30]
