"""Probes: literal payoffs, exact returns and values held to play, negative controls, pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.collect import Collector
from coterie.envs.check import check
from coterie.envs.make import make
from coterie.envs.paths import random_actions
from coterie.envs.probe import SCENARIOS
from coterie.envs.probe.task import ProbeWorld, Taken
from coterie.envs.world import WorldEnv
from coterie.errors import UserError
from coterie.policy import RandomPolicy
from coterie.types import Action, Step

GAMMA = 0.9
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCENARIOS),
    ("action", {"choices": 5, "good": 3}),
    ("additive", {}),
    ("constant", {"reward": -2}),
    ("continuous", {"follow": True}),
    ("continuous", {"target": -1.5}),
    ("delayed", {"length": 5}),
    ("endless", {"limit_ends": True, "episode_limit": 4}),
    ("flat", {"actions": "continuous"}),
    ("image", {"size": 24, "channels": 3}),
    ("masked", {"length": 4}),
    ("memory", {"delay": 6, "cues": 3}),
    ("memory", {"delay": 0}),
    ("roles", {"agents": 4}),
    ("sacrifice", {"length": 2, "lure": 0.2}),
    ("sum", {"agents": 3}),
]
BLIND = ("both", "hybrid", "image", "multi_discrete", "observation")


def env_of(name: str, copies: int = 1, with_state: bool = False, **params: Any) -> WorldEnv:
    env = make(f"probe/{name}", params, copies, seed=0, with_state=with_state)
    assert isinstance(env, WorldEnv)
    env.reset(0)
    return env


def world_of(env: WorldEnv) -> ProbeWorld:
    assert isinstance(env.world, ProbeWorld)
    return env.world


def do(env: WorldEnv, *choice: int) -> Step:
    """Every agent's first choice, the same in every copy."""
    return env.step({"agent": Action(torch.tensor([[[c] for c in choice]] * env.copies))})[0]


def name_numbers(env: WorldEnv, *number: float) -> Step:
    world = world_of(env)
    taken = Taken(torch.zeros(1, len(number), 0, dtype=torch.int64), torch.tensor([[[x] for x in number]]))
    return env.step(world.action_of(taken))[0]


def states(env: WorldEnv) -> dict[str, Tensor]:
    return env.state_dict()["state"]


def episodes(env: WorldEnv, best: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns [B] of one episode a copy, discounted ones, and the world's value of the first row, [B] each."""
    world, generator = world_of(env), torch.Generator().manual_seed(5)
    row = env.reset(1)
    value = world.best_value(states(env), GAMMA)
    total = discounted = torch.zeros(env.copies, dtype=torch.float64)
    for t in range(world.plan.length):
        actions = world.action_of(world.best(states(env))) if best else random_actions(env.spec, row, generator)
        step, row = env.step(actions)
        paid = (step.reward.sum(1) + step.group_reward.sum(1)).double()
        total, discounted = total + paid, discounted + GAMMA**t * paid
    assert not row.acted.any()
    return total, discounted, value


def close(drawn: Tensor, mean: float) -> bool:
    """Whether the mean of the draws is what it should be: within four standard errors, and rounding."""
    return abs(float(drawn.mean()) - mean) <= 4 * float(drawn.std()) / len(drawn) ** 0.5 + 1e-6


# ------------------------------------------------------------------------------------------------------- known returns


@pytest.mark.parametrize(
    ("name", "params", "best", "random"),
    [
        ("constant", {}, 1, 1),
        ("observation", {}, 0, 0),
        ("delayed", {}, 1, 1),
        ("action", {}, 1, 0),
        ("action", {"choices": 5, "good": 3}, 1, -0.6),
        ("both", {}, 1, 0),
        ("endless", {}, 10, 10),
        ("masked", {}, 1.5, 0.75),
        ("memory", {}, 1, 0),
        ("memory", {"cues": 4}, 1, -0.5),
        ("roles", {"agents": 3}, 3, 1),
        ("additive", {}, 5, 7 / 3),
        ("irrelevant", {}, 1, 0),
        ("sacrifice", {}, 1, 0.75),
        ("sum", {}, 0, -5 / 3),
        ("continuous", {}, 0, -19 / 12),
        ("continuous", {"follow": True}, 0, -5 / 3),
        ("flat", {}, 1, 1),
        ("multi_discrete", {}, 1, 13 / 36),
        ("hybrid", {}, 1, -1 / 12),
        ("image", {}, 1, 0.25),
    ],
)
def test_best_and_random_returns_are_literal(name: str, params: dict[str, Any], best: float, random: float):
    world = world_of(env_of(name, **params))
    assert world.best_return() == pytest.approx(best)
    assert world.random_return() == pytest.approx(random)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_best_play_earns_the_best_return_and_its_discounted_return_is_the_value(name: str, params: dict[str, Any]):
    env = env_of(name, 2000, **params)
    total, discounted, value = episodes(env, best=True)
    assert close(total, world_of(env).best_return())
    if (name, params) == ("endless", {}):  # the value counts what comes after the cut
        discounted = discounted + GAMMA**10 / (1 - GAMMA)
    assert close(discounted - value, 0)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_random_play_earns_the_random_return(name: str, params: dict[str, Any]):
    env = env_of(name, 20_000 if name != "image" else 4000, **params)
    total, _, _ = episodes(env, best=False)
    assert close(total, world_of(env).random_return())
    best = world_of(env).best_return()
    assert best >= world_of(env).random_return()


def test_a_wrong_random_return_would_be_noticed():
    total, _, _ = episodes(env_of("masked", 20_000), best=False)
    assert not close(total, 0.78)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_probe_says_what_it_asks_for_and_what_fails(name: str):
    known = world_of(env_of(name)).known
    assert known.claim.endswith(".")
    assert known.control.endswith(".")
    assert known.without is None or known.without < known.best


# ------------------------------------------------------------------------------------------------------ literal payoffs


def test_constant_pays_once():
    step = do(env_of("constant", reward=3), 0)
    assert (step.reward.tolist(), step.episode_terminated.tolist()) == ([[3]], [True])


def test_delayed_pays_in_the_last_step_and_shows_the_clock():
    env = env_of("delayed", length=3)
    seen, paid = [env.reset().obs["agent"][0, 0].tolist()], []
    values = []
    for _ in range(3):
        values.append(world_of(env).best_value(states(env), 0.5).item())
        step, row = env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})
        seen.append(row.obs["agent"][0, 0].tolist())
        paid.append(step.reward.item())
    assert seen[:3] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert paid == [0, 0, 1]
    assert values == [0.25, 0.5, 1]


@pytest.mark.parametrize(("good", "paid"), [(1, [-1, 1]), (0, [1, -1])])
def test_action_pays_for_the_good_choice(good: int, paid: list[float]):
    assert [do(env_of("action", good=good), choice).reward.item() for choice in (0, 1)] == paid


def test_both_pays_where_choice_and_observation_agree():
    env = env_of("both", 8)
    x = env.reset().obs["agent"][:, 0, 0]
    assert set(x.tolist()) == {-1, 1}
    assert torch.equal(do(env, 1).reward[:, 0], x)
    x = env.reset().obs["agent"][:, 0, 0]
    assert torch.equal(do(env, 0).reward[:, 0], -x)


def test_endless_is_cut_and_ended_only_in_the_control():
    values = []
    for ends in (False, True):
        env = env_of("endless", episode_limit=3, limit_ends=ends)
        values.append(world_of(env).best_value(states(env), 0.5).item())
        steps = [do(env, 0) for _ in range(3)]
        assert [step.reward.item() for step in steps] == [1, 1, 1]
        assert steps[-1].episode_terminated.item() is ends
        assert steps[-1].episode_truncated.item() is not ends
    assert values == [2, 1.75]


def test_masked_bars_the_best_choice_in_half_of_the_rows():
    env = env_of("masked", 4000)
    row = env.reset()
    mask, barred = row.action_mask["agent"][:, 0], row.obs["agent"][:, 0, 0] == 1
    assert mask[:, :2].all()
    assert torch.equal(mask[:, 2], ~barred)
    assert close(barred.double(), 0.5)
    step = do(env, 2)
    assert torch.equal(step.reward[:, 0], torch.where(barred, -1.0, 1.0))
    assert set(do(env, 1).reward[:, 0].tolist()) == {0.5}
    closing = env_of("masked", 2, length=1)
    assert set(do(closing, 0).reward[:, 0].tolist()) == {0}


def test_masked_reports_choices_that_could_not_be_made():
    env = env_of("masked", 4000)
    do(env, 2)
    told = do(env, 2).metrics["illegal"]
    assert close(told.double(), 0.5)
    env.reset()
    do(env, 1)
    assert not do(env, 1).metrics["illegal"].any()


def test_memory_shows_its_cue_once_and_asks_later():
    env = env_of("memory", 6, delay=3, cues=3)
    row = env.reset()
    cue = row.obs["agent"][:, 0, :3].argmax(1)
    assert row.obs["agent"][:, 0, :3].sum(1).tolist() == [1] * 6
    assert len(cue.unique()) > 1
    answer = {"agent": Action(cue[:, None, None])}
    asks, paid = [row.obs["agent"][0, 0, 3].item()], []
    for _ in range(4):
        step, row = env.step(answer)
        assert not row.obs["agent"][..., :3].any()
        asks.append(row.obs["agent"][0, 0, 3].item())
        paid.append(step.reward[:, 0].tolist())
    assert asks[:4] == [0, 0, 0, 1]
    assert paid == [[0] * 6, [0] * 6, [0] * 6, [1] * 6]


def test_without_memory_no_policy_beats_a_guess():
    # In the row that asks, all copies see the same, so one answer is given to all of them.
    env = env_of("memory", 4000)
    total = []
    for answer in (0, 1):
        env.reset(2)
        do(env, answer)
        total.append(do(env, answer).reward[:, 0].double())
    without = world_of(env).known.without
    assert without == 0
    assert all(close(paid, without) for paid in total)


def test_roles_pay_each_agent_for_its_own_number():
    env = env_of("roles", agents=3)
    assert do(env, 0, 1, 2).reward.tolist() == [[1, 1, 1]]
    env.reset()
    assert do(env, 1, 1, 1).reward.tolist() == [[0, 1, 0]]
    seen = env.reset().obs["agent"]
    assert torch.equal(seen, seen[:, :1].expand_as(seen))


def test_additive_pays_the_sum():
    paid = []
    for joint in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (2, 2)):
        env = env_of("additive")
        step = do(env, *joint)
        assert not step.reward.any()
        paid.append(step.group_reward.item())
    assert paid == [3, 4, 5, 0, 1, 3]


def test_an_irrelevant_team_mate_changes_nothing():
    paid = [do(env_of("irrelevant"), a, b).group_reward.item() for a in (0, 1) for b in (0, 1)]
    assert paid == [-1, -1, 1, 1]


def test_who_sacrifices_itself_is_gone_and_its_team_is_paid_at_the_end():
    env = env_of("sacrifice")
    step, row = env.step({"agent": Action(torch.tensor([[[1], [0]]]))})
    assert (step.reward.tolist(), step.group_reward.tolist()) == ([[0, 0]], [[0]])
    assert (step.terminated.tolist(), step.episode_terminated.tolist()) == ([[True, False]], [False])
    assert row.alive.tolist() == [[False, True]]
    assert not row.obs["agent"][0, 0].any()
    assert row.obs["agent"][0, 1].tolist() == [0, 1, 0.25, 1]
    last = [do(env, 0, 0) for _ in range(3)]
    assert [step.group_reward.item() for step in last] == [0, 0, 1]
    assert last[-1].episode_terminated.item()
    assert last[-1].terminated.tolist() == [[False, True]]


def test_who_stays_gets_the_lure_and_later_choices_matter_nothing():
    env = env_of("sacrifice")
    steps = [do(env, 0, 1), do(env, 1, 1), do(env, 1, 0), do(env, 1, 1)]
    assert [step.reward.tolist() for step in steps] == [[[0.5, 0]], [[0, 0]], [[0, 0]], [[0, 0]]]
    assert not any(step.group_reward.any() for step in steps)
    assert steps[-1].terminated.tolist() == [[True, True]]


def test_cutting_the_future_at_one_s_end_makes_staying_look_better():
    world = world_of(env_of("sacrifice"))
    assert world.known.without == 0.5  # what who counts its own rewards alone takes
    assert world.best_value(world.restart(torch.zeros(1, 0)), 0.99).item() == pytest.approx(0.99**3)


def test_sum_pays_the_square_of_the_distance_to_1():
    assert name_numbers(env_of("sum"), 0.75, 0.25).group_reward.item() == 0
    assert name_numbers(env_of("sum"), 1, 1).group_reward.item() == -1
    assert name_numbers(env_of("sum"), -1, 0.5).group_reward.item() == -2.25


def test_continuous_numbers_are_those_of_the_space_and_clipped_to_it():
    env = env_of("continuous")
    step, _ = env.step({"agent": Action(continuous=torch.tensor([[[0.25]]]))})  # 0.5 of [-2, 2]
    assert step.reward.item() == 0
    env.reset()
    step, _ = env.step({"agent": Action(continuous=torch.tensor([[[7.0]]]))})
    assert step.reward.item() == -2.25
    assert name_numbers(env_of("continuous", target=-1), -1.0).reward.item() == 0


def test_multi_discrete_pays_the_share_of_right_choices():
    env = env_of("multi_discrete")
    right = states(env)["right"][0].tolist()
    shown = env.reset(0).obs["agent"][0, 0].split([3, 2, 4])
    assert [int(part.argmax()) for part in shown] == right
    wrong = [(x + 1) % count for x, count in zip(right, (3, 2, 4), strict=True)]
    for picked, paid in ((right, 1), ([right[0], wrong[1], wrong[2]], 1 / 3), (wrong, 0)):
        env.reset(0)
        step, _ = env.step({"agent": Action(torch.tensor([[picked]]))})
        assert step.reward.item() == pytest.approx(paid)


def test_hybrid_pays_choice_and_number():
    env = env_of("hybrid")
    x = env.reset(0).obs["agent"].item()
    choice = torch.tensor([[[int(x > 0)]]])
    for choices, number, paid in ((choice, x / 2, 1), (1 - choice, x / 2, 0), (choice, -x / 2, 0), (choice, 0, 0.75)):
        env.reset(0)
        step, _ = env.step({"agent": Action(choices, torch.full((1, 1, 1), float(number)))})
        assert step.reward.item() == pytest.approx(paid)


# ------------------------------------------------------------------------------------------------------- pictures seen


def test_an_image_is_8_bit_and_its_brightest_place_tells_the_choice():
    env = env_of("image", 200, size=20, channels=2)
    row = env.reset()
    space, seen = env.spec.roles[0].observation_space, row.obs["agent"]
    assert space == spaces.Box(0, 255, (20, 20, 2), np.uint8)
    assert (seen.dtype, tuple(seen.shape)) == (torch.uint8, (200, 1, 20, 20, 2))
    assert torch.equal(seen[..., 0], seen[..., 1])
    place = seen[:, 0, :, :, 0].flatten(1).argmax(1)
    quarter = 2 * (place // 20 >= 10) + (place % 20 >= 10)
    assert len(quarter.unique()) == 4
    assert (seen[:, 0, :, :, 0].flatten(1).amax(1) > 225).all()
    step, _ = env.step({"agent": Action(quarter[:, None, None])})
    assert step.reward.tolist() == [[1]] * 200
    env.reset()
    assert 0 < do(env, 0).reward.mean().item() < 1


def test_images_are_collected_as_8_bits_and_resumed():
    env = env_of("image", 5, with_state=True)
    policies = {team.name: RandomPolicy(team, torch.device("cpu")) for team in env.spec.default_teams()}
    collector = Collector(env, policies, seed=1)
    windows, acted = collector.advance(6)
    seen = windows["agent"].obs["agent"]
    assert (seen.dtype, tuple(seen.shape)) == (torch.uint8, (7, 5, 1, 16, 16, 1))
    assert acted.item() == 15  # every other row is a closing one
    saved = collector.state_dict()
    other = Collector(env_of("image", 5, with_state=True), policies, seed=1)
    other.load_state_dict(saved)
    ours, theirs = (which.advance(4)[0]["agent"].obs["agent"] for which in (collector, other))
    assert torch.equal(ours, theirs)
    assert seen[0].float().std() > 0


def test_the_state_of_an_image_is_its_numbers_from_0_to_1():
    env = env_of("image", 2, with_state=True)
    row = env.reset()
    assert row.state["global"].shape == (2, env.spec.state_sizes["global"]) == (2, 256)
    assert torch.equal(row.state["global"], row.obs["agent"].flatten(1) / 255)


@pytest.mark.parametrize("name", BLIND)
def test_who_is_blind_sees_nothing_and_has_the_value_of_a_guess(name: str):
    env = env_of(name, 16, blind=True)
    world = world_of(env)
    row = env.reset()
    assert not row.obs["agent"].any()
    assert env_of(name, 16).reset().obs["agent"].any()
    value = world.best_value(states(env), GAMMA)
    assert (value == (world.known.without or 0)).all()


# ------------------------------------------------------------------------------------------------- contract, mistakes


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_every_probe_keeps_the_contract(name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.envs.trials._SLOW", 0)
    report = check(lambda n, seed: make(f"probe/{name}", params, n, seed, with_state=True), steps=25, copies=6)
    draws = world_of(env_of(name, **params)).restart_noise > 0 and (name != "continuous" or "follow" in params)
    assert [finding.rule for finding in report.findings] == ([] if draws else ["seed-ignored"]), report.render()


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("action", {"choices": 2, "good": 2}, "good=2: expected one of the choices 0 to 1"),
        ("action", {"choices": 1}, "env.choices=1: expected a whole number at least 2"),
        ("delayed", {"length": 1}, "env.length=1"),
        ("memory", {"delay": -1}, "env.delay=-1"),
        ("sacrifice", {"lure": 1}, "env.lure=1: expected"),
        ("continuous", {"target": 2}, "env.target=2: expected"),
        ("flat", {"actions": "words"}, "env.actions=words: expected"),
        ("image", {"size": 4}, "env.size=4"),
        ("constant", {"pay": 1}, "has no key 'env.pay'"),
        ("rolls", {}, "did you mean 'probe/roles'"),
    ],
)
def test_wrong_numbers_are_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(f"probe/{name}", params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("size", [64, 240])
@pytest.mark.parametrize("name", SCENARIOS)
def test_pictures_show_what_was_done(name: str, size: int):
    env, generator = env_of(name), torch.Generator().manual_seed(2)
    before = env.render(0, size)
    row = env.reset(0)
    env.step(random_actions(env.spec, row, generator))
    after = env.render(0, size)
    assert before.shape == after.shape == (size, size, 3)
    assert before.dtype == np.uint8
    assert (before != after).any()


def test_pictures_show_masks_and_who_is_gone():
    masked = env_of("masked", 32)
    row = masked.reset()
    at = int(row.obs["agent"][:, 0, 0].argmax())
    one = {name: value[at : at + 1] for name, value in states(masked).items()}
    (line,) = world_of(masked).board(one).lines
    assert [cell.barred for cell in line.cells] == [False, False, True]
    assert [cell.good for cell in line.cells] == [False, True, False]
    sacrifice = env_of("sacrifice")
    do(sacrifice, 1, 0)
    assert [line.name for line in world_of(sacrifice).board(states(sacrifice)).lines] == ["agent_0 is gone", "agent_1"]
