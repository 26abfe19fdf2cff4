"""Environment parameters: samplers, their values per environment and episode, and their effect in the worlds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.config.samplers import parse_sampler
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves
from coterie.core.types import Action, Step, Timestep
from coterie.envs import registry
from coterie.envs.make import make
from coterie.envs.worlds.world import WorldEnv
from places import ROOT


def world_env(name: str, num_envs: int = 6, **params: Any) -> WorldEnv:
    env = make(name, params, num_envs)
    assert isinstance(env, WorldEnv)
    return env


def set_samplers(env: WorldEnv, **given: Any) -> WorldEnv:
    env.set_samplers({name: parse_sampler(value) for name, value in given.items()})
    return env


def acts(env: WorldEnv, choice: int = 0) -> dict[str, Action]:
    return {r.name: Action(torch.full((env.num_envs, r.n, 1), choice)) for r in env.spec.roles}


def play(env: WorldEnv, steps: int, choice: int = 0) -> list[tuple[Step, Timestep]]:
    return [env.step(acts(env, choice)) for _ in range(steps)]


def entry(env: WorldEnv, name: str) -> torch.Tensor:
    return env.state_dict()["state"][name]


# --------------------------------------------------------------------------------------------------------- samplers


def test_a_sampler_is_serialized_as_it_was_given():
    for given in (
        0.5, True, "maze",
        {"uniform": [0.5, 1.5]},
        {"log_uniform": [0.1, 1.0]},
        {"integers": [2, 5]},
        {"normal": [1.0, 0.5], "low": 0.0},
        {"choices": [1, 2.5, "x"], "weights": [1.0, 0.0, 2.0]},
    ):  # fmt: skip
        written = parse_sampler(given).model_dump(mode="json")
        assert parse_sampler(written) == parse_sampler(given)
        assert written == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"uniform": [1, 0]}, "the lower bound 1 is greater than the upper bound 0; swap them"),
        ({"uniform": [1]}, "uniform takes low and high in brackets"),
        ({"normal": [0, -1]}, "normal has the standard deviation -1: expected at least 0"),
        ({"log_uniform": [0, 1]}, "log_uniform begins at 0: expected a number greater than 0"),
        ({"choices": [1, 2], "weights": [1]}, "1 weights for 2 choices: expected 2"),
        ({"choices": [1, 2], "weights": [0, 0]}, "all weights are 0: expected at least one greater than 0"),
        ({"choices": []}, "choices takes a list of values in brackets"),
        ({"unifrm": [0, 1]}, "there is no distribution 'unifrm'. Did you mean 'uniform'"),
        ({"uniform": [0, 1], "choices": [1]}, "uniform and choices exclude each other; keep one"),
        ({"uniform": [0, 1], "wide": 2}, "uniform has no 'wide'"),
        (float("inf"), "inf is not finite: expected a number"),
        (None, "null is not supported: expected a value, or one of uniform"),
    ],
)
def test_an_invalid_sampler_is_a_one_line_error(given: Any, message: str):
    with pytest.raises(ValueError, match="^" + message.replace("[", r"\[")) as documented:
        parse_sampler(given)
    assert "\n" not in str(documented.value)


def test_the_mean_of_a_sampler_is_the_mean_of_many_draws():
    noise = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    for given in (0.5, {"uniform": [1, 3]}, {"log_uniform": [0.1, 10]}, {"integers": [1, 4]},
                  {"normal": [0, 1], "low": -0.5}, {"choices": [1, 5], "weights": [3, 1]}):  # fmt: skip
        one = parse_sampler(given)
        assert one.mean() == pytest.approx(one.draw(noise).mean().item(), abs=1e-3)
    assert parse_sampler({"choices": ["a", "b"]}).mean() is None


def test_pick_returns_the_same_value_as_draw():
    for given in ({"uniform": [1, 3]}, {"integers": [1, 4]}, {"choices": [1, 5]}):
        one = parse_sampler(given)
        assert one.draw_one(0.625) == one.draw(torch.tensor([0.625], dtype=torch.float64)).item()
    assert parse_sampler({"choices": ["a", "b"]}).draw_one(0.625) == "b"
    assert isinstance(parse_sampler({"integers": [1, 4]}).draw_one(0.2), int)


# ----------------------------------------------------------------------------------------------------------- values


def test_values_differ_between_environments_and_episodes():
    env = set_samplers(world_env("particle/simple_tag", 64, episode_limit=3), prey_speed={"uniform": [0.5, 1.5]})
    env.reset(7)
    first = entry(env, "prey_speed")
    assert len(first.unique()) == 64
    assert 0.5 <= first.min() < 0.6
    assert 1.4 < first.max() <= 1.5
    play(env, 3)
    assert bool((entry(env, "prey_speed") == first).all())  # the final timestep belongs to the old episode
    play(env, 1)
    assert not bool((entry(env, "prey_speed") == first).any())
    env.reset(7)
    assert bool((entry(env, "prey_speed") == first).all())
    env.reset(8)
    assert not bool((entry(env, "prey_speed") == first).any())


def test_values_change_only_at_the_start_of_an_episode():
    env = set_samplers(world_env("coop/pushblock", 32, agents=2, weights=(1,), size=5), step_cost={"uniform": [0, 1]})
    env.reset(0)
    draws = torch.Generator().manual_seed(0)
    changed = 0
    for _ in range(60):
        before = entry(env, "step_cost").clone()
        _, timestep = env.step({"agent": Action(torch.randint(0, 5, (32, 2, 1), generator=draws))})
        began = timestep.first.any(1)
        changed += int(began.sum())
        assert bool(((entry(env, "step_cost") != before) == began).all())
    assert 0 < changed < 60 * 32


def test_new_samplers_take_effect_with_the_next_episode():
    env = world_env("particle/simple_tag", 4, episode_limit=4)
    env.reset(0)
    play(env, 2)
    set_samplers(env, prey_speed=0.25, spread=0.0, pursuer_speed={"uniform": [2, 3]})
    assert entry(env, "prey_speed").tolist() == [1.0] * 4
    assert entry(env, "pursuer_speed").tolist() == [1.0] * 4
    play(env, 3)
    assert entry(env, "prey_speed").tolist() == [0.25] * 4
    assert bool((entry(env, "pursuer_speed") >= 2).all())
    set_samplers(env, prey_speed=0.75)  # the others keep their samplers
    play(env, 5)
    assert entry(env, "prey_speed").tolist() == [0.75] * 4
    assert bool((entry(env, "pursuer_speed") >= 2).all())
    assert entry(env, "spread").tolist() == [0.0] * 4


def test_constant_parameters_do_not_change_the_random_numbers_of_an_environment():
    plain, same = world_env("particle/simple_tag", episode_limit=3), world_env("particle/simple_tag", episode_limit=3)
    set_samplers(same, prey_speed=1.0)
    for env in (plain, same):
        env.reset(3)
    for (_, one), (_, other) in zip(play(plain, 7), play(same, 7), strict=True):
        assert torch.equal(one.obs["agent"], other.obs["agent"])


def test_a_resumed_environment_draws_the_same_parameters():
    name = "particle/simple_tag"
    some = {"speed": {"uniform": [0.5, 2]}, "damping": {"normal": [0.25, 0.1]}, "spread": {"choices": [0.5, 1]}}
    env = set_samplers(world_env(name, 5, episode_limit=4), **some)
    env.reset(1)
    play(env, 6, choice=1)
    saved = env.state_dict()
    straight = play(env, 9, choice=1)
    again = set_samplers(world_env(name, 5, episode_limit=4), **some)
    again.load_state_dict(saved)
    for one, other in zip(straight, play(again, 9, choice=1), strict=True):
        for x, y in zip(tree_leaves(one), tree_leaves(other), strict=True):
            assert torch.equal(x, y)
    control = set_samplers(world_env(name, 5, episode_limit=4), **some)
    control.load_state_dict({k: v for k, v in saved.items() if k != "parameter_generator"})
    assert any(
        not torch.equal(x, y)
        for one, other in zip(straight, play(control, 9, choice=1), strict=True)
        for x, y in zip(tree_leaves(one), tree_leaves(other), strict=True)
    )


def test_invalid_parameters_are_one_line_errors():
    env = world_env("particle/simple_tag")
    for given, message in (
        ({"prey_sped": 1.0}, r"has no parameter 'prey_sped' that .* could set. Did you mean 'prey_speed'"),
        ({"prey_speed": -1}, r"'prey_speed' of particle/simple_tag: -1 is not between 0.05 and 10; expected numbers"),
        ({"prey_speed": {"uniform": [1, 20]}}, r"20 is not between 0.05 and 10"),
        ({"prey_speed": "fast"}, r"'fast' is not a number"),
    ):
        with pytest.raises(UserError, match=message):
            set_samplers(env, **given)
    with pytest.raises(UserError, match=r"has no parameter 'x' that .* could set\. It has none"):
        set_samplers(world_env("probe/constant"), x=1)


def test_a_normal_distribution_is_clipped_to_the_range_of_the_parameter():
    env = set_samplers(world_env("particle/simple_tag", 256), damping={"normal": [0.9, 1.0]})
    env.reset(0)
    drawn = entry(env, "damping")
    assert drawn.min() == 0
    assert drawn.max() == 1
    assert 0.1 < float((drawn == 1).float().mean()) < 0.9


def test_integer_parameters_have_integer_values():
    env = set_samplers(world_env("coop/escape", 64), pace={"uniform": [1, 4]})
    env.reset(0)
    assert entry(env, "pace").dtype == torch.int64
    assert entry(env, "pace").unique().tolist() == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------- effects


def at_rest(env: WorldEnv) -> torch.Tensor:
    world: Any = env.world
    return world.physics.layout.split(env.state_dict()["state"]["flat"].T)["moving"]


def test_speed_and_damping_change_the_distance_traveled():
    def distance(**given: Any) -> float:
        env = set_samplers(world_env("particle/simple", 1), **given)
        before = (env.reset(0), at_rest(env).clone())[1]
        play(env, 5, choice=2)
        return float((at_rest(env) - before).norm())

    plain = distance()
    assert distance(speed=2.0) == pytest.approx(2 * plain, rel=1e-5)
    assert distance(damping=0.9) < 0.7 * plain
    assert distance(speed=1.0, damping=0.25) == pytest.approx(plain, rel=1e-6)


def test_spread_scales_all_positions_towards_the_center():
    env, near = world_env("particle/simple_push", 3), set_samplers(world_env("particle/simple_push", 3), spread=0.5)
    wide, tight = env.reset(0).obs["agent"], near.reset(0).obs["agent"]
    places = [2, 3, 7, 8, 9, 10, -2, -1]  # to the goal, to the landmarks, to the other
    assert torch.allclose(tight[:, 0, places], 0.5 * wide[:, 0, places], atol=1e-6)
    assert float(wide.abs().max()) > 0.1


def test_collision_cost_is_the_penalty_per_collision():
    def rewards(cost: float) -> torch.Tensor:
        env = set_samplers(world_env("particle/simple_spread", 2, local_ratio=1.0), spread=0.0, collision_cost=cost)
        env.reset(0)
        return play(env, 1)[0][0].reward

    assert rewards(1.0).tolist() == [[-2.0] * 3] * 2
    assert rewards(0.5).tolist() == [[-1.0] * 3] * 2
    assert rewards(0.0).abs().max() == 0


def test_pursuer_speed_applies_to_pursuers_only():
    env = set_samplers(world_env("particle/simple_tag", 1), pursuer_speed=0.5, prey_speed=2.0)
    plain = world_env("particle/simple_tag", 1)
    ran = []
    for one in (env, plain):
        one.reset(0)
        timestep = play(one, 2, choice=2)[-1][1]
        ran.append((timestep.obs["adversary"][..., :2].norm(dim=-1), timestep.obs["agent"][..., :2].norm(dim=-1)))
    assert torch.allclose(ran[0][0], 0.5 * ran[1][0], rtol=1e-4)
    assert torch.allclose(ran[0][1], 2 * ran[1][1], rtol=1e-4)


def units(env: WorldEnv) -> torch.Tensor:
    return env.state_dict()["state"]["units"]


def test_enemy_health_and_distance_apply_from_the_start_and_a_won_battle_still_gives_20():
    env, plain = world_env("skirmish/2s3z", 2), world_env("skirmish/2s3z", 2)
    set_samplers(env, enemy_health=0.5, distance=6.0)
    for one in (env, plain):
        one.reset(0)
    weak, full = units(env), units(plain)
    assert torch.equal(weak[:, 2:4, 5:], 0.5 * full[:, 2:4, 5:])
    assert torch.equal(weak[:, 2:4, :5], full[:, 2:4, :5])
    assert torch.allclose(weak[:, 0, :5], full[:, 0, :5] + 4)  # 14 apart became 6
    assert torch.allclose(weak[:, 0, 5:], full[:, 0, 5:] - 4)
    world: Any = env.world
    before = weak.permute(1, 2, 0).contiguous()
    gone = before.clone()
    gone[2:4, 5:] = 0
    everyone = torch.ones(5, 2, dtype=torch.bool)
    won = torch.ones(2, dtype=torch.bool)
    reward = world._reward(before, gone, everyone, won, won, torch.full((2,), 0.5))
    assert torch.allclose(reward, torch.full((2,), 20.0), atol=1e-4)
    control = world._reward(before, gone, everyone, won, won, None)
    assert bool((control < 17).all())


def test_reach_limits_the_initial_distance_between_blocks_and_goal():
    env, far = world_env("coop/pushblock", 500, size=9), set_samplers(world_env("coop/pushblock", 500, size=9), reach=6)
    near = set_samplers(world_env("coop/pushblock", 500, size=9), reach=2)
    away = []
    for one in (env, far, near):
        one.reset(0)
        away.append(8 - entry(one, "blocks") % 9)
    assert torch.equal(away[0], away[1])  # 6 is the largest distance
    assert away[0].unique().tolist() == [1, 2, 3, 4, 5, 6]
    assert away[2].unique().tolist() == [1, 2]
    assert 0.45 < float((away[2] == 1).float().mean()) < 0.55


WORLDS = ("particle/simple_tag", "skirmish/3m", "coop/pushblock", "foraging/8x8-2p-2f", "warehouse/tiny-2ag")


def test_every_parameter_has_a_meaning_and_its_default_in_the_state():
    seen = 0
    for name in (*WORLDS, "overcooked/cramped_room", "traffic/junction-easy"):
        env = world_env(name, 2)
        env.reset(0)
        for key, parameter in env.world.parameters.items():
            seen += 1
            assert parameter.meaning, (name, key)
            assert parameter.low <= parameter.value <= parameter.high, (name, key)
            state = env.state_dict()["state"]
            assert key not in state or state[key].tolist() == pytest.approx([parameter.value] * 2), (name, key)
    assert seen > 15


def test_the_documentation_lists_exactly_the_parameters_of_the_worlds():
    page = (ROOT / "docs" / "how-to" / "curricula.md").read_text()
    lines = page.partition("<!-- parameters -->")[2].partition("\n\n`reach`")[0].split("\n")[4:]
    documented = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line]
    found = set()
    for name in registry.environments():
        family = name.partition("/")[0]
        if family in registry.FAMILIES:
            for key, p in world_env(name, 1).world.parameters.items():
                line = (f"`{key}`", f"{p.low:g}", f"{p.high:g}", p.meaning)
                found.add((f"{family}/*" if (f"{family}/*", *line) in documented else name, *line))
    assert set(documented) == found
