"""Outside environments whose parameters are drawn for every episode: told, or made anew; here and in workers."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import lessonworlds
import pytest
import torch

from coterie.__main__ import main
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.varied import Kind, taker
from coterie.envs.make import make
from coterie.envs.parameters import Varying
from coterie.envs.samplers import sampler
from coterie.envs.trials import random_actions
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.types import Row, Step, tree_leaves

SLOPE, RAMP, TIDE, PENDULUM = "lessonworlds:slope", "lessonworlds:ramp", "lessonworlds:tide", "gym/Pendulum-v1"


def opened(name: str, copies: int = 4, workers: int = 0, overlap: bool = False, **params: Any) -> Varying:
    env = make(name, params, copies, 3, workers=WorkersConfig(count=workers, overlap=overlap))
    assert isinstance(env, Varying)
    return env


def vary(env: Varying, **given: Any) -> Varying:
    samplers = {name: sampler(value) for name, value in given.items()}
    env.check_parameters(samplers)
    env.vary(samplers)
    return env


def played(env: Varying, steps: int, row: Row | None = None) -> list[Row | Step]:
    """Everything that random actions bring, from the first row on if none is given."""
    generator = torch.Generator().manual_seed(0)
    found: list[Row | Step] = []
    if row is None:
        row = env.reset()
        found.append(row)
    for _ in range(steps):
        step, row = env.step(random_actions(env.spec, row, generator))
        found += [step, row]
    return found


def same(one: list[Row | Step], other: list[Row | Step]) -> bool:
    return all(
        torch.equal(x, y)
        for a, b in zip(one, other, strict=True)
        for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)
    )


def shown(row: Row) -> torch.Tensor:
    """[B, D] of the only agent."""
    obs = row.obs["agent"]
    assert isinstance(obs, torch.Tensor)
    return obs[:, 0]


def test_an_environment_is_told_its_parameters_before_each_of_its_episodes():
    env = vary(opened(SLOPE), tilt={"uniform": [2, 3]})
    first = shown(env.reset())
    assert bool(((first[:, 0] >= 2) & (first[:, 0] <= 3)).all())
    assert len(first[:, 0].unique()) == 4
    assert first[:, 1].tolist() == [0.5] * 4  # what nobody names is as it was
    row = env.reset()
    tilt = shown(row)[:, 0]
    assert not bool((tilt == first[:, 0]).any())
    rows = []
    for _ in range(8):
        step, row = env.step(random_actions(env.spec, row, torch.Generator()))
        rows.append((step.reward[:, 0], shown(row)[:, 0]))
    paid = torch.stack([paid for paid, _ in rows])
    assert torch.equal(paid[:3], tilt.expand(3, -1))
    assert bool((paid[3] == 0).all())  # from the closing row
    assert not bool((paid[4] == tilt).any())
    assert torch.equal(paid[4:7], rows[3][1].expand(3, -1))


def test_what_is_told_in_the_middle_of_an_episode_comes_with_the_next():
    env = opened(SLOPE)
    row = env.reset()
    vary(env, tilt=7)
    paid = [step.reward[0, 0].item() for step in played(env, 7, row) if isinstance(step, Step)]
    assert paid == [1, 1, 1, 0, 7, 7, 7]


def test_a_copy_is_made_anew_only_when_a_value_of_its_constructor_changes():
    env = vary(opened(RAMP, copies=2), tilt=5.0, name={"choices": ["a", "valley"]})
    lessonworlds.MADE.clear()
    rows = [shown(row) for row in played(env, 40) if isinstance(row, Row)]
    assert {row[0, 0].item() for row in rows} == {5.0}
    words = [row[0, 1].item() for row in rows[::4]]
    assert set(words) == {1.0, 6.0}
    changes = sum(before != now for before, now in zip([0.0, *words], words, strict=False))
    assert changes < 10
    assert len(lessonworlds.MADE) < 60  # and not one an episode of each copy with its look before


def test_numbers_differ_between_episodes_of_copies_that_are_made_anew():
    env = vary(opened(RAMP, copies=3), tilt={"uniform": [0, 1]})
    noise = torch.stack([shown(row)[:, -1] for row in played(env, 16) if isinstance(row, Row)])
    assert len(noise.unique()) == noise.numel()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (SLOPE, {"tilt": {"normal": [2, 1], "low": 0}, "grip": {"choices": [0.1, 0.2]}}),
        (RAMP, {"tilt": {"uniform": [0, 1]}, "name": {"choices": ["a", "bc"]}}),
        (TIDE, {"height": {"integers": [1, 9]}}),
    ],
)
def test_any_number_of_workers_draws_the_same(name: str, given: dict[str, Any]):
    found = []
    for workers, overlap in ((0, False), (1, False), (4, False), (1, True)):
        env = vary(opened(name, 5, workers, overlap), **given)
        rows = played(env, 7)
        vary(env, **{name: 1 for name in given if name == "tilt"})
        found.append(rows + played(env, 6, rows[-1] if isinstance(rows[-1], Row) else None))
        env.close()
    assert all(same(found[0], other) for other in found[1:])
    plain = opened(name, 5)
    assert not same(found[0][:5], played(plain, 2))


def test_a_worker_that_is_replaced_draws_on_with_the_same_lessons():
    env: Any = vary(opened(SLOPE, 2, 1), tilt=4)
    env.reset()
    os.kill(env._host.pids[0], signal.SIGKILL)
    generator = torch.Generator().manual_seed(0)
    _, row = env.step(random_actions(env.spec, env.reset(5), generator))
    assert shown(row)[:, 0].tolist() == [4, 4]
    env.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_with_the_parameters_of_its_episodes(workers: int):
    given = {"g": {"uniform": [2, 20]}}
    env = vary(opened(PENDULUM, 2, workers, episode_limit=4), **given)
    rows = played(env, 6)
    saved = env.state_dict()
    last = rows[-1]
    assert isinstance(last, Row)
    straight = played(env, 9, last)
    other = vary(opened(PENDULUM, 2, 0, episode_limit=4), **given)
    other.load_state_dict(saved)
    assert same(straight, played(other, 9, last))
    control = vary(opened(PENDULUM, 2, 0, episode_limit=4), **given)
    control.load_state_dict(saved | {"copies": [one | {"values": {"g": 3.0}} for one in saved["copies"]]})
    assert not same(straight, played(control, 9, last))
    env.close()


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (SLOPE, {"tlit": 1}, r"lessonworlds:slope has no parameter 'tlit' that lessons could change: did you"),
        (SLOPE, {"grip": -1}, r"slope refuses the parameters grip=-1: ValueError: grip cannot be below 0"),
        (RAMP, {"tlit": 1}, r"ramp has no parameter 'tlit' that lessons could change: did you mean 'tilt'"),
        (RAMP, {"size": {"integers": [3, 5]}}, r"ramp with size=4 has other agents or spaces than without"),
        (RAMP, {"wrappers": 1}, r"ramp has no parameter 'wrappers'"),
        (PENDULUM, {"m": 1}, r"gym/Pendulum-v1 has no parameter 'm' that lessons could change: choose from g"),
        (PENDULUM, {"g": "heavy"}, r"gym/Pendulum-v1 takes no such parameter: g=heavy: expected a number"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_one_line(name: str, given: dict[str, Any], said: str):
    env = opened(name, 1)
    with pytest.raises(UserError, match=said) as told:
        vary(env, **given)
    assert "\n" not in str(told.value)
    env.close()


def test_a_batch_that_cannot_vary_says_so():
    from coterie.curriculum.config import CurriculumConfig
    from coterie.curriculum.course import Course

    env = make("gymvec/CartPole-v1", None, 2)
    with pytest.raises(UserError, match=r"gymvec/CartPole-v1 steps its copies as one batch.* leave g out"):
        Course(CurriculumConfig(), {"g": sampler(1)}).check(env)
    env.close()


def test_an_environment_that_was_not_made_by_name_cannot_vary():
    from coterie.envs.hosting.opening import opened as by_name

    layout, one = by_name(SLOPE, {})
    env = HostedEnv(Alone(one, layout, 1), 0, "cpu")
    with pytest.raises(UserError, match="was not made by its name"):
        env.vary({"tilt": sampler(1)})


def test_parameters_are_listed_with_what_is_known_of_them(capsys: pytest.CaptureFixture[str]):
    found = opened(SLOPE, 1).parameters()
    assert {name: p.value for name, p in found.items()} == {"tilt": 1.0, "grip": 0.5}
    found = opened(RAMP, 1, tilt=3.0).parameters()
    assert found["tilt"].value == 3.0
    assert sorted(found) == ["name", "size", "tilt"]
    assert "size" in opened(RAMP, 3, 1, overlap=True).parameters()
    assert main(["list", "parameters", "env=particle/simple_tag", "--json"]) == 0
    rows = {row.pop("parameter"): row for row in json.loads(capsys.readouterr().out)}
    meaning = "factor on thrust and speed limit of prey"
    assert rows["prey_speed"] == {"value": 1.0, "low": 0.05, "high": 10, "meaning": meaning}
    assert main(["list", "parameters", f"env={RAMP}"]) == 0
    assert "of its constructor: copies are made anew" in capsys.readouterr().out


def test_who_takes_parameters_is_found_behind_wrappers():
    _, copy = Kind(SLOPE, {"wrappers": {"reward_scale": 2.0, "frame_stack": 2}, "episode_limit": 2}).make({})
    assert isinstance(taker(copy), lessonworlds.Slope)
    _, plain = Kind(RAMP, {}).make({})
    assert taker(plain) is None
