"""PettingZoo's environments behind the contract: its own loops to the letter, roles, deaths, masks, turns, errors."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zooworlds
from gymnasium import spaces

import coterie
from coterie import registry
from coterie.__main__ import main
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.qlearning import QLearning, QLearningConfig
from coterie.collect import Collector
from coterie.config import load_resolved, resolve
from coterie.envs.adapters.pettingzoo import PettingZoo
from coterie.envs.adapters.rounds import Rounds
from coterie.envs.adapters.spaces import Actuator
from coterie.envs.adapters.turns import Turns, with_waiting
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference, random_actions
from coterie.envs.vector import VectorEnv
from coterie.errors import NonFiniteError, UserError
from coterie.origins import to_yaml
from coterie.policy import RandomPolicy
from coterie.replay import Replay
from coterie.schema import WorkersConfig
from coterie.seeds import seed_of
from coterie.types import Action, Row, Step
from tinyruns import train

SPREAD = "pettingzoo/mpe2.simple_spread_v3"
FOUR, NOUGHTS = "pettingzoo/classic.connect_four_v3", "pettingzoo/classic.tictactoe_v3"


def played(env: VectorEnv, steps: int, seed: int = 0) -> Iterator[tuple[Row, dict[str, Action], Step, Row]]:
    """Random actions that obey the masks, with the rows before and after, from a reset on."""
    generator = torch.Generator().manual_seed(seed)
    row = env.reset()
    for _ in range(steps):
        action = random_actions(env.spec, row, generator)
        step, after = env.step(action)
        yield row, action, step, after
        row = after


def natives(env: VectorEnv, action: dict[str, Action], b: int) -> dict[str, Any]:
    """What every agent of the b-th copy does, by its name, in its own space's terms."""
    found: dict[str, Any] = {}
    for role in env.spec.roles:
        discrete, continuous = (None if x is None else x[b].numpy() for x in vars(action[role.name]).values())
        found |= zip(role.agents, Actuator(role.action_space)(discrete, continuous), strict=True)
    return found


def seat(env: VectorEnv, agent: str) -> tuple[int, str, int]:
    """An agent's place among all, its role, and its place there."""
    role = next(role for role in env.spec.roles if agent in role.agents)
    return env.spec.agents.index(agent), role.name, role.agents.index(agent)


def seeds_of(env: VectorEnv, seed: int, b: int) -> Iterator[int]:
    """With what the b-th copy's episodes are begun."""
    own = seed_of(seed, "env", env.spec.name, b) >> 32
    yield own
    generator = np.random.default_rng(own)
    while True:
        yield int(generator.integers(2**31))


def the_library_s_own(name: str, interface: str, params: dict[str, Any]) -> Any:
    """The environment as somebody makes it who does not know Coterie."""
    module = name.removeprefix("pettingzoo/")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a younger way to make it
        found = importlib.import_module(module if module.startswith("mpe2") else f"pettingzoo.{module}")
    # Without a render mode pistonball leaves the ball out of what its pistons see.
    return getattr(found, interface)(**params, **({"render_mode": "rgb_array"} if "pistonball" in name else {}))


# --------------------------------------------------------------------------------------------- the library's own loop

PARALLEL = (
    (SPREAD, {"N": 2, "max_cycles": 7}, False),
    ("pettingzoo/mpe2.simple_world_comm_v3", {"max_cycles": 6}, True),
    ("pettingzoo/mpe2.simple_tag_v3", {"max_cycles": 6, "continuous_actions": True}, False),
    ("pettingzoo/butterfly.pistonball_v6", {"max_cycles": 5, "n_pistons": 3}, False),
    ("pettingzoo/butterfly.knights_archers_zombies_v11", {"max_cycles": 9}, True),
    ("pettingzoo/sisl.multiwalker_v9", {"max_cycles": 11, "n_walkers": 2}, True),
    ("pettingzoo/sisl.pursuit_v5", {"max_cycles": 8, "n_evaders": 2, "n_pursuers": 3}, True),
)


def flat(observation: Any) -> np.ndarray:
    return np.asarray(observation) if np.asarray(observation).dtype == np.uint8 else np.ravel(observation)


@pytest.mark.parametrize(("name", "params", "state"), PARALLEL, ids=[row[0].partition("/")[2] for row in PARALLEL])
def test_every_copy_agrees_with_the_library_s_parallel_loop(name: str, params: dict[str, Any], state: bool):
    env = make(name, params, copies=2, seed=4, with_state=True)
    path = list(played(env, 20))
    cuts = 0
    for b in range(2):
        own, seeds = the_library_s_own(name, "parallel_env", params), seeds_of(env, 4, b)
        observations, _ = own.reset(seed=next(seeds))
        for row, action, step, after in path:
            for agent in own.agents:
                at, role, k = seat(env, agent)
                shown = row.obs[role][b, k].numpy()
                np.testing.assert_array_equal(shown, flat(observations[agent]).astype(shown.dtype))
                assert row.alive[b, at]
            if "global" in row.state and own.agents:
                np.testing.assert_array_equal(row.state["global"][b], np.ravel(own.state()).astype(np.float32))
            if not row.acted[b]:
                assert not step.reward[b].any()
                observations, _ = own.reset(seed=next(seeds))
                assert after.first[b].all()
                continue
            chosen = natives(env, action, b)
            living = list(own.agents)
            observations, rewards, ends, limits, _ = own.step({agent: chosen[agent] for agent in living})
            for agent in living:
                at = seat(env, agent)[0]
                assert step.reward[b, at] == np.float32(rewards[agent])
                assert bool(step.terminated[b, at]) == ends[agent]
                assert bool(step.truncated[b, at]) == (limits[agent] and not ends[agent])
            assert bool(after.acted[b]) == bool(own.agents)
            # A limit is a cut everywhere but in multiwalker, which calls it an end of the task.
            cuts += bool((step.episode_terminated if "multiwalker" in name else step.episode_truncated)[b])
        own.close()
    assert cuts
    assert ("global" in env.spec.state_sizes) == (state or name == SPREAD or "mpe2" in name)


@pytest.mark.parametrize(("name", "wins"), [(FOUR, True), (NOUGHTS, True), ("zooworlds:Ring", False)])
def test_every_copy_agrees_with_the_library_s_loop_of_turns(name: str, wins: bool):
    env = make(name, copies=2, seed=4)
    path = list(played(env, 60))
    ends = 0
    for b in range(2):
        own = zooworlds.Ring() if name == "zooworlds:Ring" else the_library_s_own(name, "env", {})
        at, seeds, due = 0, seeds_of(env, 4, b), defaultdict(float)
        while True:
            own.reset(seed=next(seeds))
            for agent in own.agent_iter():
                observation, reward, ended, cut, info = own.last()
                assert due.pop(agent, 0.0) == reward  # all that was paid since its last turn
                if ended or cut:
                    own.step(None)
                    continue
                if at == len(path):
                    break
                row, action, step, _ = path[at]
                n, role, k = seat(env, agent)
                seen = observation["observation"] if isinstance(observation, dict) else observation
                mask = (observation if isinstance(observation, dict) else info)["action_mask"]
                np.testing.assert_array_equal(row.obs[role][b, k].numpy(), flat(seen).astype(np.float32))
                assert row.action_mask[role][b, k].int().tolist() == [*mask, 0]
                assert row.acted[b]
                for i, other in enumerate(env.spec.agents):
                    due[other] += step.reward[b, i].item()
                    waits = row.action_mask[role][b, i].int().tolist()
                    assert other == agent or waits == ([0] * len(mask) + [1] if row.alive[b, i] else [1] * len(waits))
                own.step(natives(env, action, b)[agent])
                assert bool(step.terminated[b, n]) == own.terminations.get(agent)
                at += 1
            if at == len(path):
                break
            assert not path[at][0].acted[b]
            ends, at = ends + bool(path[at - 1][2].episode_terminated[b]), at + 1
            if at == len(path):
                break
    assert bool(ends) == wins


def test_the_agreement_would_show_a_restart_that_swallows_the_last_observation():
    *_, (_, _, step, closing) = played(make(SPREAD, {"max_cycles": 3}, copies=2), 3)
    assert step.episode_truncated.all()
    assert not closing.acted.any()
    *_, (_, _, _, first) = played(make(SPREAD, {"max_cycles": 3}, copies=2), 4)
    assert first.first.all()
    assert not torch.equal(closing.obs["agent"], first.obs["agent"])


def test_copies_have_seeds_of_their_own_and_a_reset_with_a_seed_begins_again():
    few, many = (make(SPREAD, {"N": 2}, copies=copies, seed=3).reset().obs["agent"] for copies in (2, 4))
    assert torch.equal(few, many[:2])
    assert len(many.unique(dim=0)) == 4
    env = make(SPREAD, {"N": 2}, copies=2, seed=3)
    first, second = env.reset().obs["agent"], env.reset().obs["agent"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(3).obs["agent"], first)
    assert torch.equal(env.reset().obs["agent"], second)


CLEAN = (
    (SPREAD, {"max_cycles": 6}),
    (FOUR, {}),
    (NOUGHTS, {}),
    ("pettingzoo/classic.rps_v2", {}),
    ("pettingzoo/butterfly.pistonball_v6", {"max_cycles": 4, "n_pistons": 2}),
    ("pettingzoo/sisl.multiwalker_v9", {"max_cycles": 9, "terminate_on_fall": False, "n_walkers": 2}),
    ("pettingzoo/sisl.pursuit_v5", {"max_cycles": 9, "n_evaders": 3, "n_pursuers": 3}),
    ("zooworlds:isle", {}),
    ("zooworlds:isle", {"mask": "obs", "episode_limit": 7}),
    ("zooworlds:Crowd", {"max_agents": 5, "episode_limit": 7}),
    ("zooworlds:Crowd", {"max_agents": {"ant": 4}}),
    ("zooworlds:Ring", {}),
    ("zooworlds:Recalled", {}),
    ("zooworlds:Shifts", {}),
    ("zooworlds:Shifts", {"episode_limit": 3}),
    ("zooworlds:pendulum", {"episode_limit": 8}),
    ("zooworlds:spread_by_turns", {"N": 2, "max_cycles": 5}),
)
HARMLESS = {"slow", "render-missing", "seed-ignored", "copies-alike", "limit-undeclared"}


@pytest.mark.parametrize(("name", "params"), CLEAN, ids=[f"{n.partition('/')[2] or n}-{len(p)}" for n, p in CLEAN])
def test_the_contract_is_kept(name: str, params: dict[str, Any]):
    report = check(lambda copies, seed: make(name, params, copies, seed, with_state=True), steps=20, copies=2)
    assert {finding.rule for finding in report.findings} <= HARMLESS, report.render()
    assert report.facts["resume"] == "begins new episodes"


def test_the_check_finds_what_the_knights_leave_behind_at_a_reset():
    params = {"max_cycles": 30, "spawn_delay": 5}
    name = "pettingzoo/butterfly.knights_archers_zombies_v11"
    report = check(lambda copies, seed: make(name, params, copies, seed), steps=10, copies=2)
    assert {finding.rule for finding in report.findings} - HARMLESS == {"reset-seed"}, report.render()


# --------------------------------------------------------------------------------------------------- deaths and births


def isle_rows(**params: Any) -> tuple[VectorEnv, list[tuple[Row, dict[str, Action], Step, Row]]]:
    env = make("zooworlds:isle", params, copies=2, seed=1, with_state=True)
    return env, list(played(env, 10))


def test_agents_die_come_late_and_end_with_the_episode():
    env, path = isle_rows()
    assert env.spec.agents == ("worker_0", "worker_1", "scout_0")
    assert [row.alive[0].int().tolist() for row, *_ in path] == [
        *([[1, 1, 0]] * 2), *([[1, 1, 1]] * 2), *([[0, 1, 1]] * 2), *([[0, 1, 0]] * 4)
    ]  # fmt: skip
    assert [row.first[0].int().tolist() for row, *_ in path[:4]] == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert [torch.nonzero(step.terminated[0]).tolist() for _, _, step, _ in path] == [
        *([[]] * 3), [[0]], *([[]] * 4), [[1]], []
    ]  # fmt: skip
    assert [torch.nonzero(step.truncated[0]).tolist() for _, _, step, _ in path] == [*([[]] * 5), [[2]], *([[]] * 4)]
    assert [bool(step.episode_terminated.all()) for _, _, step, _ in path] == [False] * 8 + [True, False]
    assert not any(step.episode_truncated.any() for _, _, step, _ in path)
    assert [step.reward[0].tolist() for _, _, step, _ in path] == [
        [1, 21, 0], [2, 22, 0], [3, 23, 13], [4, 24, 14], [0, 25, 15], [0, 26, 16], [0, 27, 0], [0, 28, 0], [0, 29, 0],
        [0, 0, 0],
    ]  # fmt: skip
    assert [row.state["global"][0, 1].item() for row, *_ in path] == list(range(10))


def test_an_absent_agent_shows_nothing_and_could_do_anything():
    _, path = isle_rows()
    assert path[6][0].obs["scout"][:, 0, 1:].tolist() == [[6, 7]] * 2  # was cut in the step before
    row = path[7][0]
    assert not row.obs["worker"][:, 0].any()
    assert not row.obs["scout"].any()
    assert row.action_mask["worker"][:, 0].all()
    assert row.obs["worker"][:, 1, 1].tolist() == [7, 7]
    assert "scout" not in row.action_mask


def test_masks_are_found_in_observations_and_in_infos_alike():
    (one, info), (two, obs) = isle_rows(), isle_rows(mask="obs")
    assert one.spec.roles == two.spec.roles
    for (a, _, step_a, _), (b, _, step_b, _) in zip(info, obs, strict=True):
        assert difference(a, b) is None
        assert difference(step_a, step_b) is None
    assert [row.action_mask["worker"][0, 1].int().tolist() for row, *_ in info[:3]] == [[1, 0, 1], [1, 1, 0], [0, 1, 1]]


def test_actions_of_all_spaces_reach_their_agents(monkeypatch: pytest.MonkeyPatch):
    made: list[zooworlds.Isle] = []
    monkeypatch.setattr(
        zooworlds, "isle", lambda dies=4, mask="info": made.append(zooworlds.Isle(dies, mask)) or made[-1]
    )
    env, path = isle_rows()
    given = made[-2:][0]  # the first of two copies
    for t in range(9):
        chosen = natives(env, path[t][1], 0)
        for agent, action in given.seen[t].items():
            np.testing.assert_array_equal(action, chosen[agent])


def test_a_limit_cuts_whoever_lives_and_who_dies_at_it_has_died():
    env, path = isle_rows(episode_limit=4)
    assert env.spec.episode_limit == 4
    step = path[3][2]
    assert step.episode_truncated.all()
    assert step.terminated[0].tolist() == [True, False, False]
    assert step.truncated[0].tolist() == [False, True, True]
    assert path[4][0].obs["worker"][0, 1, 1] == 4  # the closing row shows the last observation
    assert path[5][0].first[0].tolist() == [True, True, False]


@pytest.mark.parametrize("workers", [0, 2])
def test_who_is_cut_alone_shows_its_last_observation_and_is_gone(workers: int):
    env = make("zooworlds:Shifts", {"clock": True}, 2, workers=WorkersConfig(count=workers))
    try:
        path = list(played(env, 7))
    finally:
        env.close()
    for b in range(2):
        assert [row.alive[b].int().tolist() for row, *_ in path] == [[1, 1]] * 3 + [[0, 1]] * 4
        assert [step.truncated[b].int().tolist() for _, _, step, _ in path[:6]] == [
            *([[0, 0]] * 2), [1, 0], *([[0, 0]] * 2), [0, 1]
        ]  # fmt: skip
        assert [row.obs["agent"][b, 0].tolist() for row, *_ in path] == [
            *([1, t] for t in range(4)), *([[0, 0]] * 3)
        ]  # fmt: skip
        masks = [row.action_mask["agent"][b, 0].int().tolist() for row, *_ in path]
        assert masks == [[1, 0], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]]
        assert [row.obs["agent"][b, 1].tolist() for row, *_ in path] == [[1, t] for t in range(7)]
        assert [bool(row.acted[b]) for row, *_ in path] == [True] * 6 + [False]


def test_who_is_cut_alone_where_its_episode_is_cut_too_is_in_the_closing_row():
    _, path = isle_rows(episode_limit=6)
    row, _, step, closing = path[5]
    assert row.alive[0].tolist() == [False, True, True]
    assert step.truncated[0].tolist() == [False, True, True]
    assert closing.alive[0].tolist() == [False, True, True]
    assert closing.obs["scout"][0, 0, 1:].tolist() == [6, 7]


def test_who_is_cut_alone_in_a_game_of_turns_waits_in_its_last_row():
    path = list(played(make("zooworlds:Recalled", copies=1), 7))
    assert path[4][2].truncated[0].tolist() == [False, True, False]
    shown = [(row.obs["player"][0, 1].tolist(), row.action_mask["player"][0, 1].int().tolist()) for row, *_ in path[4:]]
    assert shown[1:] == [([5, 1], [0, 0, 0, 1]), ([0, 0], [1, 1, 1, 1])]
    assert [row.alive[0].tolist() for row, *_ in path[5:]] == [[True, False, True]] * 2
    assert not path[5][0].action_mask["player"][0, 2, 3]  # the turn goes on


def empties_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of adapters: who was cut alone is not shown."""
    change = Rounds._change

    def changed(self: Rounds, *given: Any) -> dict[Any, int]:
        change(self, *given)
        for seat in self._cut:
            seat.empty()
        return self._seated

    monkeypatch.setattr(Rounds, "_change", changed)


def cleans_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of collectors: what is shown of who was cut alone does not reach learners."""
    monkeypatch.setattr(Collector, "_sees", lambda self, shown, earned: shown["alive"])


MISTAKES = (None, empties_at_once, cleans_the_dead)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_independent_learner_s_value_of_who_was_cut_alone_is_taken_from_its_last_observation(
    mistake: Any, monkeypatch: pytest.MonkeyPatch
):
    if mistake:
        mistake(monkeypatch)
    env = make("zooworlds:Shifts", {"clock": True}, 2)
    (team,) = env.spec.default_teams()
    config = PPOConfig(horizon=6, hidden=(8,), gamma=0.9, gae_lambda=0.0, normalise_value=False, critic="own")
    learner = PPO(team, config, 2, None, 0, torch.device("cpu"))
    window = Collector(env, {team.name: learner.policy}, seed=0).advance(6)[0][team.name]
    clock = torch.arange(7.0)
    seen = torch.stack([torch.ones(7), clock], -1).view(7, 1, 1, 2).expand(7, 2, 2, 2)
    with torch.no_grad():
        value = learner.critic({"agent": seen}, None, None, {})[0][..., 0]
        target = learner._targets(window)[0].target[..., 0]
    expected = 1 + 0.9 * value[1:]
    torch.testing.assert_close(target[:, :, 1], expected[:, :, 1])
    torch.testing.assert_close(target[:2, :, 0], expected[:2, :, 0])
    assert torch.allclose(target[2, :, 0], expected[2, :, 0]) == (mistake is None)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_q_learning_takes_the_value_of_who_was_cut_alone_through_the_replay(
    mistake: Any, monkeypatch: pytest.MonkeyPatch
):
    """A reward of 1 for ever is worth 2 at gamma 0.5."""
    if mistake:
        mistake(monkeypatch)
    env = make("zooworlds:Shifts", copies=2)
    (team,) = env.spec.default_teams()
    config = QLearningConfig(
        mixer="none", share="none", gamma=0.5, hidden=(16,), lr=1e-2, horizon=5, learning_starts=0, batch=32,
        target_every=10, updates=4,
    )  # fmt: skip
    learner = QLearning(team, config, 2, None, 0, torch.device("cpu"))
    collector = Collector(env, {team.name: learner.policy}, seed=0)
    for _ in range(60):
        learner.update(collector.advance(5)[0][team.name], 0.0)
    with torch.no_grad():
        (q,) = learner.value({"agent": torch.tensor([[[1.0, 0.0]] * 2])}, None, {}, None)[0].values()
    worth = q[0, :, 0].tolist()
    assert worth[1] == pytest.approx(2, abs=0.05)
    assert (worth[0] == pytest.approx(2, abs=0.05)) == (mistake is None)


def test_windows_and_replays_show_who_was_cut_alone_wherever_windows_begin():
    env = make("zooworlds:Shifts", {"clock": True}, 2)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, torch.device("cpu"))}, seed=0)
    replay = Replay(
        team, 2, 3, capacity=60, length=1, starts="row", states=(), seed=0, device=torch.device("cpu")
    )  # fmt: skip
    windows = [collector.advance(3)[0][team.name] for _ in range(4)]
    seen = torch.cat([window.obs["agent"][:-1, :, 0] for window in windows])
    assert seen[:7, 0].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [0, 0], [0, 0], [0, 0]]
    for one, then in pairwise(windows):
        assert torch.equal(one.obs["agent"][-1], then.obs["agent"][0])
    for window in windows:
        replay.add(window)
    sample = replay.sample(200).window
    cut = sample.truncated[0, :, 0]
    assert cut.any()
    assert sample.obs["agent"][1, cut, 0].tolist() == [[1, 3]] * int(cut.sum())
    assert not sample.alive[1, cut, 0].any()


def test_a_last_observation_that_is_no_number_stops_the_run():
    env = make("zooworlds:Shifts", {"last": float("nan")}, 2)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, torch.device("cpu"))}, seed=0)
    collector.advance(2)
    with pytest.raises(
        NonFiniteError, match=r"observation of role 'agent' .*copy 0, agent agent_0, step 2 of the copy"
    ):
        collector.advance(2)


def test_strangers_take_free_slots_which_stay_empty_for_a_row():
    env = make("zooworlds:Crowd", {"max_agents": 4}, copies=1, seed=2)
    assert env.spec.agents == ("ant_0", "ant_1", "ant_2", "ant_3")
    path = list(played(env, 13))
    alive = [row.alive[0].int().tolist() for row, *_ in path]
    assert alive[:6] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]
    ages = [row.obs["ant"][0, :, 1].int().tolist() for row, *_ in path]
    assert ages[:5] == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0], [0, 2, 1, 0], [0, 0, 2, 1]]
    number = path[0][0].obs["ant"][0, 0, 0].item()
    assert path[4][0].obs["ant"][0, 0].tolist() == [number + 4, 0]
    assert path[4][0].first[0].tolist() == [True, False, False, False]
    assert path[11][2].episode_truncated.all()
    own = path[3][1]["ant"].continuous
    assert own is not None
    assert path[3][2].reward[0].tolist() == [0, *(2 * own[0, 1:, 0]).tolist()]  # in [-1, 1], of bounds -2 and 2


def test_too_few_slots_say_so():
    env = make("zooworlds:Crowd", {"max_agents": 3})
    with pytest.raises(UserError, match=r"all 3 slots of role ant are taken: set env.max_agents.ant=6"):
        list(played(env, 9))


# --------------------------------------------------------------------------------------------------------------- roles


def roles(name: str, **params: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(role.name, role.group, role.agents) for role in spec_of(name, params).roles]


def test_names_without_their_number_are_roles():
    assert roles("pettingzoo/mpe2.simple_tag_v3") == [
        ("adversary", "adversary", ("adversary_0", "adversary_1", "adversary_2")),
        ("agent", "agent", ("agent_0",)),
    ]
    assert [role[0] for role in roles("pettingzoo/mpe2.simple_crypto_v3")] == ["eve", "bob", "alice"]


def test_agents_of_one_name_and_several_spaces_are_kinds_of_one_group():
    class Mixed(zooworlds.Isle):
        possible_agents = ["unit_0", "unit_1", "unit_2", "other"]  # noqa: RUF012

        def observation_space(self, agent: str) -> spaces.Space:
            return zooworlds.FAR if agent == "unit_1" else zooworlds.NEAR

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zooworlds, "isle", Mixed)
        assert roles("zooworlds:isle") == [
            ("unit_kind1", "unit", ("unit_0", "unit_2")),
            ("unit_kind2", "unit", ("unit_1",)),
            ("other", "other", ("other",)),
        ]


def test_roles_may_be_given():
    given = {"prey": "agent_*", "hunter": ["adversary_0", "adversary_2"], "scout": ["*"]}
    assert roles("pettingzoo/mpe2.simple_tag_v3", roles=given) == [
        ("prey", "prey", ("agent_0",)),
        ("hunter", "hunter", ("adversary_0", "adversary_2")),
        ("scout", "scout", ("adversary_1",)),
    ]
    words = [
        "env=pettingzoo/classic.tictactoe_v3",
        "env.roles.first=player_1",
        "env.roles.second=[player_2]",
        "algo=random",
    ]
    resolved = resolve(words)
    env = make(resolved.config.env.name, resolved.config.env.params)
    assert [team.name for team in env.spec.default_teams()] == ["first", "second"]


def test_states_are_shown_to_those_who_read_them_and_large_ones_only_when_asked_for():
    def sizes(with_state: bool, **params: Any) -> dict[str, int]:
        return make(SPREAD, {"N": 2, **params}, with_state=with_state).spec.state_sizes

    assert sizes(True) == sizes(False, state=True) == {"global": 24}
    assert sizes(False) == sizes(True, state=False) == {}
    pictured = "pettingzoo/butterfly.cooperative_pong_v6"
    assert spec_of(pictured).state_sizes == {}
    assert spec_of(pictured, {"state": True}).state_sizes == {"global": 280 * 480 * 3}


# --------------------------------------------------------------------------------------------------------------- turns


def test_who_waits_can_only_wait_and_whose_turn_it_is_cannot():
    env = make(FOUR, copies=2)
    assert env.spec.roles[0].action_space == spaces.Discrete(8)
    for t, (row, _, _, _) in enumerate(played(env, 6)):
        mask = row.action_mask["player"]
        assert row.alive.all()
        assert mask[:, t % 2].tolist() == [[True] * 7 + [False]] * 2
        assert mask[:, 1 - t % 2].tolist() == [[False] * 7 + [True]] * 2


def test_illegal_moves_are_never_drawn():
    env = make(FOUR, copies=3, seed=1)
    full = 0
    for row, _, step, _ in played(env, 150):
        moving = ~row.action_mask["player"][..., 7]
        full += int((~row.action_mask["player"][..., :7])[moving].sum())
        assert not step.truncated.any()  # the library cuts a game at an illegal move, and calls it terminated too
        lost = step.reward.sum(1)
        assert not lost.any()  # who moves illegally loses one, and nobody wins it
    assert full


def test_an_illegal_move_would_be_seen():
    env = make(FOUR)
    row = env.reset()
    for _ in range(7):  # always the first column, which takes six
        choice = row.action_mask["player"].int().argmax(-1, keepdim=True)
        moving = ~row.action_mask["player"][..., 7]
        choice[moving] = 0
        step, row = env.step({"player": Action(discrete=choice)})
    assert step.reward.sum() == -1


def test_rewards_between_turns_are_paid_when_they_arrive_and_death_frees_the_turn():
    env = make("zooworlds:Ring", copies=1)
    path = list(played(env, 12))
    moves = [
        int(natives(env, action, 0)[f"player_{who}"])
        for (_, action, _, _), who in zip(path, (0, 1, 2, 0, 1), strict=False)
    ]
    for t, then in enumerate((1, 2, 0, 1, 2)):
        paid = [0.0, 0.0, moves[t] / 2]
        paid[then] += moves[t]
        assert path[t][2].reward[0].tolist() == paid
    assert path[4][2].terminated[0].tolist() == [False, True, False]
    assert [row.alive[0].tolist() for row, *_ in path[5:11]] == [[True, False, True]] * 6
    turns = [(~row.action_mask["player"][0, :, 3]).int().tolist() for row, *_ in path[5:9]]
    assert turns == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert path[10][2].episode_truncated.all()


def test_waiting_is_one_more_choice_in_every_component():
    space = spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 4]), spaces.Box(-1, 1, (2,))])
    wider = with_waiting(space)
    assert wider == spaces.Tuple([spaces.Discrete(4, start=2), spaces.MultiDiscrete([3, 5]), spaces.Box(-1, 1, (2,))])


def test_turns_that_update_once_a_round_are_played_as_rounds():
    (_, _, one, row), (_, _, other, same) = (
        next(played(make(f"zooworlds:{name}", {"N": 2}, seed=1), 1)) for name in ("spread", "spread_by_turns")
    )
    assert one.reward.all()
    assert row.action_mask == {}
    assert row.obs["agent"].shape == same.obs["agent"].shape == (1, 2, 12)
    assert other.reward.all()


# ------------------------------------------------------------------------------------------------ names, keys, errors


def test_constructor_parameters_are_keys(tmp_path: Path):
    resolved = resolve([f"env={SPREAD}", "env.N=4", "env.max_cycles=9", "algo=random"])
    given = resolved.config.env.params.model_dump()
    assert given.items() >= {"N": 4, "max_cycles": 9, "local_ratio": 0.5, "episode_limit": None}.items()
    assert "render_mode" not in given
    assert resolved.origins["env.N"] == "command line"
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    assert load_resolved(tmp_path / "config.yaml") == resolved
    spec = make(SPREAD, resolved.config.env.params).spec
    assert (spec.n, spec.episode_limit, spec.mortal, spec.exact_resume) == (4, 9, False, False)
    assert spec_of(SPREAD, {"episode_limit": 5}).episode_limit == 5
    assert spec_of("pettingzoo/sisl.multiwalker_v9", {"n_walkers": 2}).n == 2
    own = resolve(["env=zooworlds:isle", "env.dies=2", "env.max_agents.worker=5", "algo=random"]).config.env.params
    dumped = own.model_dump(exclude_none=True, exclude={"wrappers"})
    assert dumped == {"dies": 2, "mask": "info", "max_agents": {"worker": 5}}


WRONG = (
    ("pettingzoo/butterfly.pistonbal_v6", {}, "did you mean 'pettingzoo/butterfly.pistonball_v6'"),
    ("pettingzoo/butterfly.pistonball_v5", {}, "did you mean 'pettingzoo/butterfly.pistonball_v6'"),
    ("pettingzoo/butterfly/pistonball_v6", {}, "did you mean 'pettingzoo/butterfly.pistonball_v6'"),
    ("pettingzoo/mpe.simple_spread_v3", {}, "did you mean 'pettingzoo/mpe2.simple_spread_v3'"),
    ("pettingzoo/simple_spread_v3", {}, "did you mean 'pettingzoo/mpe2.simple_spread_v3'"),
    ("pettingzoo/qqqqqqqq", {}, "named like 'butterfly.pistonball_v6'"),
    ("pettingzoo/json", {}, "there is no environment 'pettingzoo/json'"),
    ("petingzoo/mpe2.simple_v3", {}, "there is no environment"),
    ("pettingzoo/magent2.environments.battle_v4", {}, "needs magent2: pip install magent2"),
    (SPREAD, {"n": 3}, "has no key 'env.n': did you mean"),
    (SPREAD, {"N": "many"}, "env.N=many: expected"),
    (SPREAD, {"episode_limit": 0}, "env.episode_limit=0: expected a whole number at least 1"),
    (SPREAD, {"roles": {"a": "agnt_*", "b": "*"}}, "env.roles.a fits no agent"),
    (SPREAD, {"roles": {"a": "agent_0"}}, "env.roles names no role for agent 'agent_1'"),
    (SPREAD, {"max_agents": {"agnt": 3}}, "env.max_agents.agnt fits no agent: did you mean 'agent'"),
    (FOUR, {"state": True}, "the environment has no state()"),
    ("pettingzoo/sisl.multiwalker_v9", {"n_walker": 3}, "unexpected keyword argument 'n_walker'"),
    (FOUR, {"wrappers": {"action_repeat": 2}}, "agents take turns, so what one did is not for the next step"),
    (FOUR, {"wrappers": {"sticky_actions": 0.1}}, "leave env.wrappers.sticky_actions out"),
    ("zooworlds:isle", {"deis": 3}, "has no key 'env.deis': did you mean 'env.dies'"),
    ("zooworlds:needy", {}, "missing 1 required positional argument: 'size'"),
    ("zooworlds:Seedless", {}, "write reset(self, seed=None, options=None)"),
    ("zooworlds:pendulum", {"roles": {"a": "*"}}, "leave env.roles out"),
    ("zooworlds:flat", {}, "module 'zooworlds' has no 'flat'"),
)


@pytest.mark.parametrize(("name", "params", "words"), WRONG)
def test_what_cannot_be_made_is_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset", "reset() returned a dict, expected the pair (observations, infos)"),
        ("empty", "reset() left `agents` empty"),
        ("step", "step() did not return (observations, rewards, terminations, truncations, infos)"),
        ("rewards", "step() returned no rewards of agent 'worker_1', which acted"),
        ("truncations", "step() returned no truncations of agent 'worker_1', which acted"),
        ("observations", "returned no observation of agent 'worker_1', which lives"),
        ("unseen", "returned no observation of agent 'scout_0', which was cut by a limit"),
        ("vanished", "agent 'worker_1' left `agents`, and neither terminations nor truncations said so"),
        ("stranger", "agent 'worker_7' appeared, which is none of `possible_agents`: set env.max_agents=N"),
        ("mask", "the action mask of an agent of role worker has 2 entries: expected 3"),
        ("state", "state() returned 3 numbers, at first 2"),
    ],
)
def test_a_fault_of_an_environment_is_named(fault: str, words: str):
    with pytest.raises(UserError) as error:
        list(played(make("zooworlds:Faulty", {"fault": fault}, with_state=True), 9))
    assert words in str(error.value)


def test_the_same_environment_without_a_fault_raises_nothing():
    assert len(list(played(make("zooworlds:Faulty", {"fault": "none"}), 20))) == 20


def test_other_surprises_are_named_too():
    with pytest.raises(UserError, match=r"info shows 'action_mask' of agent 'worker_0' only later"):
        isle_rows(mask="late", dies=9)
    with pytest.raises(UserError, match=r"agent 'scout_0' ended early or came late: env.mortal=true"):
        isle_rows(mortal=False)


def test_an_error_within_a_factory_is_the_user_s_to_debug():
    with pytest.raises(TypeError, match="something within"):
        make("zooworlds:raising")


class Gone:
    """Stands before all finders: a package is not installed."""

    def __init__(self, package: str):
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named '{self.package}'", name=self.package)


@pytest.mark.parametrize(
    ("missing", "name", "command"),
    [
        ("pymunk", "butterfly.pistonball_v6", 'pip install "pettingzoo[butterfly]"'),
        ("Box2D", "sisl.multiwalker_v9", 'pip install "pettingzoo[sisl]"'),
        ("mpe2", "mpe2.simple_spread_v3", "pip install mpe2"),
        ("pettingzoo", "classic.rps_v2", 'pip install "pettingzoo[classic]"'),
    ],
)
def test_a_missing_library_says_what_to_install(missing: str, name: str, command: str, monkeypatch: pytest.MonkeyPatch):
    path = name if name.startswith("mpe2") else f"pettingzoo.{name}"
    for module in [
        m for m in sys.modules if f"{m}.".startswith((f"{path.rpartition('_v')[0]}.", f"{path}.", f"{missing}."))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Gone(missing), *sys.meta_path])
    with pytest.raises(UserError) as error:
        PettingZoo(name)
    assert f"pettingzoo/{name}' needs " in str(error.value)
    assert str(error.value).endswith(command)


def test_own_factories_are_told_apart_by_whether_they_take_copies():
    assert not registry.is_batch_factory("zooworlds:isle")
    assert not registry.is_batch_factory("zooworlds:Ring")
    assert registry.is_batch_factory("worlds:counter")
    assert not registry.is_batch_factory(SPREAD)


@pytest.mark.parametrize(("name", "params"), [(FOUR, {}), ("zooworlds:Crowd", {"max_agents": {"ant": 5}})])
def test_worker_processes_bring_the_same_bits(name: str, params: dict[str, Any]):
    alone, shared = (make(name, params, 3, seed=2, workers=WorkersConfig(count=count)) for count in (0, 2))
    try:
        for one, other in zip(played(alone, 30), played(shared, 30), strict=True):
            assert all(difference(a, b) is None for a, b in zip(one, other, strict=True))
    finally:
        shared.close()


# ------------------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("name", [SPREAD, FOUR, "pettingzoo/sisl.multiwalker_v9"])
def test_pictures_are_drawn_when_asked_for(name: str):
    env = make(name, copies=2)
    env.reset()
    picture = env.render(1, 120)
    assert max(picture.shape[:2]) == 120
    assert picture.dtype == np.uint8
    assert picture.std() > 0


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize(
    "settings",
    [
        ("algo=mappo", f"env={SPREAD}", "env.max_cycles=8"),
        ("algo=ippo", f"env={NOUGHTS}"),
        ("algo=qmix", f"env={NOUGHTS}", "algo.learning_starts=20", "algo.batch=4", "algo.mixer_hidden=4"),
        ("algo=ippo", "env=zooworlds:isle", "env.episode_limit=7", "teams.all.roles=[worker,scout]"),
        ("algo=ippo", "env=zooworlds:Crowd", "env.max_agents=5", "algo.memory=gru", "algo.memory_size=8"),
        ("algo=mappo", "env=pettingzoo/sisl.multiwalker_v9", "env.max_cycles=12", "env.n_walkers=2"),
        (
            *("algo=ippo", "env=pettingzoo/butterfly.knights_archers_zombies_v11", "env.max_cycles=12"),
            "teams.all.roles=[archer,knight]",
        ),
        (
            *("algo=ippo", "env=pettingzoo/butterfly.pistonball_v6", "env.max_cycles=6", "env.n_pistons=2"),
            *("env.wrappers.grey=true", "env.wrappers.resize=[48,24]"),
        ),
    ],
    ids=lambda settings: "-".join(s.partition("=")[2].rpartition("/")[2] for s in settings[:2]),
)
def test_it_is_trained_evaluated_and_loaded_like_any_other(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    if "algo=qmix" in settings:
        words = [*settings, "steps=80", "copies=4", "eval.every=40", "eval.episodes=2", "threads=1", f"out={run}"]
        assert (
            main(["train", *words, "algo.horizon=10", "algo.hidden=[8]", "progress=off", "log.tensorboard=false"]) == 0
        )
    else:
        train(run, "eval.every=40", "eval.episodes=2", "eval.copies=2", "algo.minibatches=1", *settings)
    assert main(["evaluate", str(run), "--episodes", "2", "--json"]) == 0
    assert '"return_mean"' in capsys.readouterr().out
    assert coterie.load(run).teams


def test_a_player_moves_in_the_library_s_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    run = tmp_path / "run"
    train(run, "algo=ippo", f"env={NOUGHTS}")
    player, env = coterie.load(run).player(seed=1), the_library_s_own(NOUGHTS, "env", {})
    env.reset(seed=0)
    moves = 0
    for agent in env.agent_iter():
        _, _, ended, cut, _ = env.last()
        if ended or cut:
            env.step(None)
            continue
        seen = {other: env.observe(other) for other in env.agents}
        obs = {other: np.ravel(seen[other]["observation"]) for other in seen}
        able = {other: [*seen[other]["action_mask"], 0] if other == agent else [0] * 9 + [1] for other in seen}
        env.step(player.act(obs, able)[agent])
        moves += 1
    assert 5 <= moves <= 9


def test_the_instance_says_that_it_cannot_save_its_state():
    env = make(SPREAD)
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    kind = registry.environment(SPREAD)
    instance = kind.instance(kind.Config())
    assert isinstance(instance, Rounds)
    assert not isinstance(instance.env, Turns)
    with pytest.raises(UserError, match="cannot be saved"):
        instance.load_state_dict({})
    instance.close()
    instance.close()
