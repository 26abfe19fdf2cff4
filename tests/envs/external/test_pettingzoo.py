"""PettingZoo environments: equality with the library's loops, roles, deaths, masks, turns, errors."""

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
from gymnasium import spaces

import coterie
import pettingzoo_worlds
from coterie.__main__ import main
from coterie.algos.replay.buffer import ReplayBuffer
from coterie.algos.replay.spec import ReplaySpec
from coterie.assembly.resolve import load_resolved, resolve
from coterie.checks.environment.contract import check
from coterie.config.provenance import to_yaml
from coterie.config.schema import WorkersConfig
from coterie.core.errors import EnvironmentFailedError, NonFiniteError, UserError
from coterie.core.installation import install_extra
from coterie.core.seeds import seed_of
from coterie.core.types import Action, Step, Timestep
from coterie.envs import registry
from coterie.envs.contract.traces import first_difference, random_actions
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.aec import TurnBasedEnv, with_waiting
from coterie.envs.external.parallel_step import ParallelInstance
from coterie.envs.external.pettingzoo import PettingZoo
from coterie.envs.external.spaces import Actuator
from coterie.envs.make import make, spec_of
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from tinyruns import train

SPREAD = "pettingzoo/mpe2.simple_spread_v3"
FOUR, NOUGHTS = "pettingzoo/classic.connect_four_v3", "pettingzoo/classic.tictactoe_v3"


def played(env: VectorEnv, steps: int, seed: int = 0) -> Iterator[tuple[Timestep, dict[str, Action], Step, Timestep]]:
    """Plays random legal actions after a reset; yields the timesteps before and after each step."""
    generator = torch.Generator().manual_seed(seed)
    timestep = env.reset()
    for _ in range(steps):
        action = random_actions(env.spec, timestep, generator)
        step, after = env.step(action)
        yield timestep, action, step, after
        timestep = after


def native_actions(env: VectorEnv, action: dict[str, Action], b: int) -> dict[str, Any]:
    """Native actions of environment b by agent name."""
    found: dict[str, Any] = {}
    for role in env.spec.roles:
        discrete, continuous = (None if x is None else x[b].numpy() for x in vars(action[role.name]).values())
        found |= zip(role.agents, Actuator(role.action_space)(discrete, continuous), strict=True)
    return found


def seat(env: VectorEnv, agent: str) -> tuple[int, str, int]:
    """Index of an agent, its role, and its index within the role."""
    role = next(role for role in env.spec.roles if agent in role.agents)
    return env.spec.agents.index(agent), role.name, role.agents.index(agent)


def seeds_of(env: VectorEnv, seed: int, b: int) -> Iterator[int]:
    """Seeds of the episodes of environment b."""
    own = seed_of(seed, "env", env.spec.name, b) >> 32
    yield own
    generator = np.random.default_rng(own)
    while True:
        yield int(generator.integers(2**31))


def library_env(name: str, interface: str, params: dict[str, Any]) -> Any:
    """The environment as created without Coterie."""
    module = name.removeprefix("pettingzoo/")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings
        found = importlib.import_module(module if module.startswith("mpe2") else f"pettingzoo.{module}")
    # Without a render mode pistonball omits the ball from observations.
    return getattr(found, interface)(**params, **({"render_mode": "rgb_array"} if "pistonball" in name else {}))


# ----------------------------------------------------------------------------------------------- the library's own loop

PARALLEL = (
    ("pettingzoo/mpe2.simple_world_comm_v3", {"max_cycles": 6}, True),
    ("pettingzoo/mpe2.simple_tag_v3", {"max_cycles": 6, "continuous_actions": True}, False),
    ("pettingzoo/butterfly.pistonball_v6", {"max_cycles": 5, "n_pistons": 3}, False),
    ("pettingzoo/butterfly.knights_archers_zombies_v11", {"max_cycles": 9}, True),
    ("pettingzoo/sisl.multiwalker_v9", {"max_cycles": 11, "n_walkers": 2}, True),
)


def flat(observation: Any) -> np.ndarray:
    return np.asarray(observation) if np.asarray(observation).dtype == np.uint8 else np.ravel(observation)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params", "state"), PARALLEL, ids=[case[0].partition("/")[2] for case in PARALLEL])
def test_every_environment_equals_the_library_s_parallel_loop(name: str, params: dict[str, Any], state: bool):
    env = make(name, params, num_envs=2, seed=4, with_state=True)
    path = list(played(env, 20))
    truncations = 0
    for b in range(2):
        own, seeds = library_env(name, "parallel_env", params), seeds_of(env, 4, b)
        observations, _ = own.reset(seed=next(seeds))
        for timestep, action, step, after in path:
            for agent in own.agents:
                at, role, k = seat(env, agent)
                shown = timestep.obs[role][b, k].numpy()
                np.testing.assert_array_equal(shown, flat(observations[agent]).astype(shown.dtype))
                assert timestep.alive[b, at]
            if "global" in timestep.state and own.agents:
                np.testing.assert_array_equal(timestep.state["global"][b], np.ravel(own.state()).astype(np.float32))
            if not timestep.acted[b]:
                assert not step.reward[b].any()
                observations, _ = own.reset(seed=next(seeds))
                assert after.first[b].all()
                continue
            chosen = native_actions(env, action, b)
            living = list(own.agents)
            observations, rewards, ends, limits, _ = own.step({agent: chosen[agent] for agent in living})
            for agent in living:
                at = seat(env, agent)[0]
                assert step.reward[b, at] == np.float32(rewards[agent])
                assert bool(step.terminated[b, at]) == ends[agent]
                assert bool(step.truncated[b, at]) == (limits[agent] and not ends[agent])
            assert bool(after.acted[b]) == bool(own.agents)
            # The limit truncates, except in multiwalker, which terminates.
            truncations += bool((step.episode_terminated if "multiwalker" in name else step.episode_truncated)[b])
        own.close()
    assert truncations
    assert ("global" in env.spec.state_sizes) == (state or "mpe2" in name)


@pytest.mark.parametrize(("name", "wins"), [(FOUR, True), (NOUGHTS, True), ("pettingzoo_worlds:Ring", False)])
def test_every_environment_equals_the_library_s_turn_based_loop(name: str, wins: bool):
    env = make(name, num_envs=2, seed=4)
    path = list(played(env, 60))
    ends = 0
    for b in range(2):
        own = pettingzoo_worlds.Ring() if name == "pettingzoo_worlds:Ring" else library_env(name, "env", {})
        at, seeds, pending = 0, seeds_of(env, 4, b), defaultdict(float)
        while True:
            own.reset(seed=next(seeds))
            for agent in own.agent_iter():
                observation, reward, ended, cut, info = own.last()
                assert pending.pop(agent, 0.0) == reward  # all rewards since its last turn
                if ended or cut:
                    own.step(None)
                    continue
                if at == len(path):
                    break
                timestep, action, step, _ = path[at]
                n, role, k = seat(env, agent)
                seen = observation["observation"] if isinstance(observation, dict) else observation
                mask = (observation if isinstance(observation, dict) else info)["action_mask"]
                np.testing.assert_array_equal(timestep.obs[role][b, k].numpy(), flat(seen).astype(np.float32))
                assert timestep.action_mask[role][b, k].int().tolist() == [*mask, 0]
                assert timestep.acted[b]
                for i, other in enumerate(env.spec.agents):
                    pending[other] += step.reward[b, i].item()
                    waits = timestep.action_mask[role][b, i].int().tolist()
                    assert other == agent or waits == (
                        [0] * len(mask) + [1] if timestep.alive[b, i] else [1] * len(waits)
                    )
                own.step(native_actions(env, action, b)[agent])
                assert bool(step.terminated[b, n]) == own.terminations.get(agent)
                at += 1
            if at == len(path):
                break
            assert not path[at][0].acted[b]
            ends, at = ends + bool(path[at - 1][2].episode_terminated[b]), at + 1
            if at == len(path):
                break
    assert bool(ends) == wins


CLEAN = (
    ("pettingzoo_worlds:isle", {"mask": "obs", "episode_limit": 7}),
    ("pettingzoo_worlds:Crowd", {"max_agents": 5, "episode_limit": 7}),
    ("pettingzoo_worlds:Ring", {}),
    ("pettingzoo_worlds:Recalled", {}),
    ("pettingzoo_worlds:Shifts", {"episode_limit": 3}),
)
HARMLESS = {"slow", "render-missing", "seed-ignored", "envs-identical", "episode-limit-undeclared"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), CLEAN, ids=[f"{n.partition('/')[2] or n}-{len(p)}" for n, p in CLEAN])
def test_environments_keep_the_contract(name: str, params: dict[str, Any]):
    report = check(lambda num_envs, seed: make(name, params, num_envs, seed, with_state=True), steps=20, num_envs=2)
    assert {finding.name for finding in report.findings} <= HARMLESS, report.render()
    assert report.summary["resume"] == "starts new episodes"


# ------------------------------------------------------------------------------------------- agents that leave and join


def play_isle(**params: Any) -> tuple[VectorEnv, list[tuple[Timestep, dict[str, Action], Step, Timestep]]]:
    env = make("pettingzoo_worlds:isle", params, num_envs=2, seed=1, with_state=True)
    return env, list(played(env, 10))


def test_agents_die_join_late_and_end_with_the_episode():
    env, path = play_isle()
    assert env.spec.agents == ("worker_0", "worker_1", "scout_0")
    assert [timestep.alive[0].int().tolist() for timestep, *_ in path] == [
        *([[1, 1, 0]] * 2), *([[1, 1, 1]] * 2), *([[0, 1, 1]] * 2), *([[0, 1, 0]] * 4)
    ]  # fmt: skip
    first = [timestep.first[0].int().tolist() for timestep, *_ in path[:4]]
    assert first == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
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
    assert [timestep.state["global"][0, 1].item() for timestep, *_ in path] == list(range(10))


def test_masks_are_found_in_observations_and_in_infos():
    (one, info), (two, obs) = play_isle(), play_isle(mask="obs")
    assert one.spec.roles == two.spec.roles
    for (a, _, step_a, _), (b, _, step_b, _) in zip(info, obs, strict=True):
        assert first_difference(a, b) is None
        assert first_difference(step_a, step_b) is None
    masks = [timestep.action_mask["worker"][0, 1].int().tolist() for timestep, *_ in info[:3]]
    assert masks == [[1, 0, 1], [1, 1, 0], [0, 1, 1]]


def test_the_limit_truncates_living_agents_and_deaths_at_the_limit_terminate():
    env, path = play_isle(episode_limit=4)
    assert env.spec.episode_limit == 4
    step = path[3][2]
    assert step.episode_truncated.all()
    assert step.terminated[0].tolist() == [True, False, False]
    assert step.truncated[0].tolist() == [False, True, True]
    assert path[4][0].alive[0].tolist() == [False, True, True]  # the final timestep shows the last observations
    assert path[4][0].obs["worker"][0, :, 1].tolist() == [0, 4]
    assert path[4][0].obs["scout"][0, 0, 1:].tolist() == [4, 7]
    assert path[5][0].first[0].tolist() == [True, True, False]


def test_an_individually_truncated_agent_shows_its_last_observation_once():
    path = list(played(make("pettingzoo_worlds:Shifts", {"clock": True}, 2), 7))
    for b in range(2):
        assert [timestep.alive[b].int().tolist() for timestep, *_ in path] == [[1, 1]] * 3 + [[0, 1]] * 4
        assert [step.truncated[b].int().tolist() for _, _, step, _ in path[:6]] == [
            *([[0, 0]] * 2), [1, 0], *([[0, 0]] * 2), [0, 1]
        ]  # fmt: skip
        assert [timestep.obs["agent"][b, 0].tolist() for timestep, *_ in path] == [
            *([1, t] for t in range(4)), *([[0, 0]] * 3)
        ]  # fmt: skip
        masks = [timestep.action_mask["agent"][b, 0].int().tolist() for timestep, *_ in path]
        assert masks == [[1, 0], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]]
        assert [timestep.obs["agent"][b, 1].tolist() for timestep, *_ in path] == [[1, t] for t in range(7)]
        assert [bool(timestep.acted[b]) for timestep, *_ in path] == [True] * 6 + [False]


def test_an_individually_truncated_agent_of_a_turn_based_game_waits_at_its_last_timestep():
    path = list(played(make("pettingzoo_worlds:Recalled", num_envs=1), 7))
    assert path[4][2].truncated[0].tolist() == [False, True, False]
    shown = [
        (timestep.obs["player"][0, 1].tolist(), timestep.action_mask["player"][0, 1].int().tolist())
        for timestep, *_ in path[4:]
    ]
    assert shown[1:] == [([5, 1], [0, 0, 0, 1]), ([0, 0], [1, 1, 1, 1])]
    assert [timestep.alive[0].tolist() for timestep, *_ in path[5:]] == [[True, False, True]] * 2
    assert not path[5][0].action_mask["player"][0, 2, 3]  # the turn moves on


def test_rollouts_and_replay_buffers_contain_last_observations_at_any_rollout_boundary():
    env = make("pettingzoo_worlds:Shifts", {"clock": True}, 2)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, torch.device("cpu"))}, seed=0)
    replay = ReplayBuffer(
        ReplaySpec(
            team=team, num_envs=2, rollout_length=3, capacity=60, sequence_length=1, sequence_start="timestep",
            states=(), seed=0, device=torch.device("cpu"),
        )
    )  # fmt: skip
    rollouts = [collector.advance(3)[0][team.name] for _ in range(4)]
    seen = torch.cat([rollout.obs["agent"][:-1, :, 0] for rollout in rollouts])
    assert seen[:7, 0].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [0, 0], [0, 0], [0, 0]]
    for one, then in pairwise(rollouts):
        assert torch.equal(one.obs["agent"][-1], then.obs["agent"][0])
    for rollout in rollouts:
        replay.add(rollout)
    sample = replay.sample(200).rollout
    cut = sample.truncated[0, :, 0]
    assert cut.any()
    assert sample.obs["agent"][1, cut, 0].tolist() == [[1, 3]] * int(cut.sum())
    assert not sample.alive[1, cut, 0].any()


def test_a_nan_last_observation_stops_the_run():
    env = make("pettingzoo_worlds:Shifts", {"last": float("nan")}, 2)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, torch.device("cpu"))}, seed=0)
    collector.advance(2)
    with pytest.raises(NonFiniteError, match=r"observation of role 'agent' .*number 0, agent agent_0, step 2"):
        collector.advance(2)


def test_new_agents_take_free_slots_that_stay_empty_for_a_timestep():
    env = make("pettingzoo_worlds:Crowd", {"max_agents": 4}, num_envs=1, seed=2)
    assert env.spec.agents == ("ant_0", "ant_1", "ant_2", "ant_3")
    path = list(played(env, 13))
    alive = [timestep.alive[0].int().tolist() for timestep, *_ in path]
    assert alive[:6] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]
    ages = [timestep.obs["ant"][0, :, 1].int().tolist() for timestep, *_ in path]
    assert ages[:5] == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0], [0, 2, 1, 0], [0, 0, 2, 1]]
    number = path[0][0].obs["ant"][0, 0, 0].item()
    assert path[4][0].obs["ant"][0, 0].tolist() == [number + 4, 0]
    assert path[4][0].first[0].tolist() == [True, False, False, False]
    assert path[11][2].episode_truncated.all()
    own = path[3][1]["ant"].continuous
    assert own is not None
    assert path[3][2].reward[0].tolist() == [0, *(2 * own[0, 1:, 0]).tolist()]  # in [-1, 1], of bounds -2 and 2


def test_too_few_slots_raise_an_error_with_the_setting():
    env = make("pettingzoo_worlds:Crowd", {"max_agents": 2})
    with pytest.raises(UserError, match=r"all 2 slots of role ant are taken. Set env.max_agents.ant=4"):
        list(played(env, 9))


# ---------------------------------------------------------------------------------------------------------------- roles


def roles(name: str, **params: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(role.name, role.group, role.agents) for role in spec_of(name, params).roles]


def test_names_without_trailing_numbers_are_roles():
    assert roles("pettingzoo/mpe2.simple_tag_v3") == [
        ("adversary", "adversary", ("adversary_0", "adversary_1", "adversary_2")),
        ("agent", "agent", ("agent_0",)),
    ]
    assert [role[0] for role in roles("pettingzoo/mpe2.simple_crypto_v3")] == ["eve", "bob", "alice"]


def test_agents_of_one_name_with_different_spaces_are_roles_of_one_group():
    class Mixed(pettingzoo_worlds.Isle):
        possible_agents = ["unit_0", "unit_1", "unit_2", "other"]  # noqa: RUF012

        def observation_space(self, agent: str) -> spaces.Space:
            return pettingzoo_worlds.FAR if agent == "unit_1" else pettingzoo_worlds.NEAR

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pettingzoo_worlds, "isle", Mixed)
        assert roles("pettingzoo_worlds:isle") == [
            ("unit_kind1", "unit", ("unit_0", "unit_2")),
            ("unit_kind2", "unit", ("unit_1",)),
            ("other", "other", ("other",)),
        ]


def test_roles_can_be_configured():
    given = {"prey": "agent_*", "hunter": ["adversary_0", "adversary_2"], "scout": ["*"]}
    assert roles("pettingzoo/mpe2.simple_tag_v3", roles=given) == [
        ("prey", "prey", ("agent_0",)),
        ("hunter", "hunter", ("adversary_0", "adversary_2")),
        ("scout", "scout", ("adversary_1",)),
    ]
    words = (f"env={NOUGHTS}", "env.roles.first=player_1", "env.roles.second=[player_2]", "algo=random")
    resolved = resolve([*words])
    env = make(resolved.config.env.name, resolved.config.env.params)
    assert [team.name for team in env.spec.default_teams()] == ["first", "second"]


def test_states_are_passed_to_critics_and_large_ones_only_on_request():
    def sizes(with_state: bool, **params: Any) -> dict[str, int]:
        return make(SPREAD, {"N": 2, **params}, with_state=with_state).spec.state_sizes

    assert sizes(True) == sizes(False, state=True) == {"global": 24}
    assert sizes(False) == sizes(True, state=False) == {}
    pictured = "pettingzoo/butterfly.cooperative_pong_v6"
    assert spec_of(pictured).state_sizes == {}
    assert spec_of(pictured, {"state": True}).state_sizes == {"global": 280 * 480 * 3}


# ---------------------------------------------------------------------------------------------------------------- turns


def test_rewards_between_turns_are_returned_immediately_and_deaths_pass_the_turn():
    env = make("pettingzoo_worlds:Ring", num_envs=1)
    path = list(played(env, 12))
    moves = [
        int(native_actions(env, action, 0)[f"player_{who}"])
        for (_, action, _, _), who in zip(path, (0, 1, 2, 0, 1), strict=False)
    ]
    for t, then in enumerate((1, 2, 0, 1, 2)):
        expected = [0.0, 0.0, moves[t] / 2]
        expected[then] += moves[t]
        assert path[t][2].reward[0].tolist() == expected
    assert path[4][2].terminated[0].tolist() == [False, True, False]
    assert [timestep.alive[0].tolist() for timestep, *_ in path[5:11]] == [[True, False, True]] * 6
    turns = [(~timestep.action_mask["player"][0, :, 3]).int().tolist() for timestep, *_ in path[5:9]]
    assert turns == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert path[10][2].episode_truncated.all()


def test_a_wait_action_is_appended_to_every_component():
    space = spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 4]), spaces.Box(-1, 1, (2,))])
    wider = with_waiting(space)
    assert wider == spaces.Tuple([spaces.Discrete(4, start=2), spaces.MultiDiscrete([3, 5]), spaces.Box(-1, 1, (2,))])


def test_aec_environments_that_update_once_per_cycle_are_parallel():
    (_, _, one, timestep), (_, _, other, same) = (
        next(played(make(f"pettingzoo_worlds:{name}", {"N": 2}, seed=1), 1)) for name in ("spread", "spread_aec")
    )
    assert one.reward.all()
    assert timestep.action_mask == {}
    assert timestep.obs["agent"].shape == same.obs["agent"].shape == (1, 2, 12)
    assert other.reward.all()


# -------------------------------------------------------------------------------------------------- names, keys, errors


def test_constructor_parameters_are_settings(tmp_path: Path):
    resolved = resolve([f"env={SPREAD}", "env.N=4", "env.max_cycles=9", "algo=random"])
    given = resolved.config.env.params.model_dump()
    assert given.items() >= {"N": 4, "max_cycles": 9, "local_ratio": 0.5, "episode_limit": None}.items()
    assert "render_mode" not in given
    assert resolved.origins["env.N"] == "command line"
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    assert load_resolved(tmp_path / "config.yaml") == resolved
    spec = make(SPREAD, resolved.config.env.params).spec
    assert (spec.n, spec.episode_limit, spec.agents_can_die, spec.exact_resume) == (4, 9, False, False)
    assert spec_of(SPREAD, {"episode_limit": 5}).episode_limit == 5
    assert spec_of("pettingzoo/sisl.multiwalker_v9", {"n_walkers": 2}).n == 2
    own = resolve(
        ["env=pettingzoo_worlds:isle", "env.dies=2", "env.max_agents.worker=5", "algo=random"]
    ).config.env.params
    dumped = own.model_dump(exclude_none=True, exclude={"wrappers"})
    assert dumped == {"dies": 2, "mask": "info", "max_agents": {"worker": 5}, "teams": "separate"}


WRONG = (
    ("pettingzoo/butterfly.pistonbal_v6", {}, "Did you mean 'pettingzoo/butterfly.pistonball_v6'"),
    ("pettingzoo/butterfly/pistonball_v6", {}, "Did you mean 'pettingzoo/butterfly.pistonball_v6'"),
    ("pettingzoo/mpe.simple_spread_v3", {}, "Did you mean 'pettingzoo/mpe2.simple_spread_v3'"),
    ("pettingzoo/qqqqqqqq", {}, "named like 'butterfly.pistonball_v6'"),
    ("pettingzoo/json", {}, "module 'json' belongs to Python's standard library"),
    ("pettingzoo/magent2.environments.battle_v4", {}, "needs magent2. Install it with: pip install magent2"),
    (SPREAD, {"n": 3}, "has no setting 'env.n'. Did you mean"),
    (SPREAD, {"episode_limit": 0}, "env.episode_limit=0: expected an integer at least 1"),
    (SPREAD, {"roles": {"a": "agnt_*", "b": "*"}}, "env.roles.a: matches no agent"),
    (SPREAD, {"roles": {"a": "agent_0"}}, "env.roles: no role for agent 'agent_1'"),
    (SPREAD, {"max_agents": {"agnt": 3}}, "env.max_agents.agnt: matches no agent. Did you mean 'agent'"),
    (FOUR, {"state": True}, "the environment has no state()"),
    ("pettingzoo/sisl.multiwalker_v9", {"n_walker": 3}, "unexpected keyword argument 'n_walker'"),
    (FOUR, {"wrappers": {"action_repeat": 2}}, "agents act in turn, so an action cannot be repeated in the next step"),
    (FOUR, {"wrappers": {"sticky_actions": 0.1}}, "env.wrappers.sticky_actions: agents act in turn"),
    ("pettingzoo_worlds:isle", {"deis": 3}, "has no setting 'env.deis'. Did you mean 'env.dies'"),
    ("pettingzoo_worlds:needy", {}, "missing 1 required positional argument: 'size'"),
    ("pettingzoo_worlds:Seedless", {}, "Define reset(self, seed=None, options=None)"),
    (
        "pettingzoo_worlds:pendulum",
        {"roles": {"a": "*"}},
        "env.roles: environment 'pettingzoo_worlds:pendulum' is a gymnasium.Env",
    ),
    ("pettingzoo_worlds:flat", {}, "module 'pettingzoo_worlds' has no 'flat'"),
)


@pytest.mark.parametrize(("name", "params", "message"), WRONG)
def test_invalid_names_and_settings_raise_one_line_errors(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("empty", "reset() left `agents` empty"),
        ("rewards", "step() returned no rewards of agent 'worker_1', which acted"),
        ("observations", "returned no observation of agent 'worker_1', which is alive"),
        ("unseen", "returned no observation of agent 'scout_0', which was truncated"),
        ("vanished", "agent 'worker_1' left `agents` without a termination or truncation"),
        ("stranger", "agent 'worker_7' joined but is not in `possible_agents`. Set env.max_agents=N."),
        ("mask", "role worker: an action mask has 2 entries, expected 3"),
        ("state", "state() returned 3 elements, initially 2"),
    ],
)
def test_faults_of_an_environment_are_reported(fault: str, message: str):
    with pytest.raises(UserError) as error:
        list(played(make("pettingzoo_worlds:Faulty", {"fault": fault}, with_state=True), 9))
    assert message in str(error.value)


def test_late_masks_and_undeclared_deaths_are_reported():
    with pytest.raises(UserError, match=r"the info of agent 'worker_0' shows 'action_mask' only later"):
        play_isle(mask="late", dies=9)
    with pytest.raises(
        UserError, match=r"agent 'scout_0' terminated early or joined late. Set env.agents_can_die=true."
    ):
        play_isle(agents_can_die=False)


@pytest.mark.parametrize("name", ["raising", "leaving"])
def test_an_error_inside_a_factory_is_one_line_with_its_place(name: str):
    with pytest.raises(EnvironmentFailedError, match=r"failed in its factory: .*\(pettingzoo_worlds.py:\d+\)") as error:
        make(f"pettingzoo_worlds:{name}")
    assert isinstance(error.value.__cause__, TypeError if name == "raising" else SystemExit)


class MissingPackage:
    """Import finder that simulates a missing package."""

    def __init__(self, package: str):
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named '{self.package}'", name=self.package)


@pytest.mark.parametrize(
    ("missing", "name", "command"),
    [
        ("Box2D", "sisl.multiwalker_v9", install_extra("pettingzoo")),
        ("pettingzoo", "classic.rps_v2", 'pip install "pettingzoo[classic]"'),
    ],
)
def test_a_missing_library_is_reported_with_the_install_command(
    missing: str, name: str, command: str, monkeypatch: pytest.MonkeyPatch
):
    path = name if name.startswith("mpe2") else f"pettingzoo.{name}"
    for module in [
        m for m in sys.modules if f"{m}.".startswith((f"{path.rpartition('_v')[0]}.", f"{path}.", f"{missing}."))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [MissingPackage(missing), *sys.meta_path])
    with pytest.raises(UserError) as error:
        PettingZoo(name)
    assert f"pettingzoo/{name}' needs " in str(error.value)
    assert str(error.value).endswith(command)


@pytest.mark.slow
def test_workers_do_not_change_results():
    name, params = "pettingzoo_worlds:Crowd", {"max_agents": {"ant": 5}}
    alone, shared = (make(name, params, 3, seed=2, workers=WorkersConfig(count=count)) for count in (0, 2))
    try:
        for one, other in zip(played(alone, 30), played(shared, 30), strict=True):
            assert all(first_difference(a, b) is None for a, b in zip(one, other, strict=True))
    finally:
        shared.close()


# ------------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", [SPREAD, FOUR])
def test_images_are_rendered_on_request(name: str):
    env = make(name, num_envs=2)
    env.reset()
    picture = env.render(1, 120)
    assert max(picture.shape[:2]) == 120
    assert picture.dtype == np.uint8
    assert picture.std() > 0


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("env=pettingzoo_worlds:isle", "env.episode_limit=7", "teams.all.roles=[worker,scout]"),
        ("env=pettingzoo_worlds:Crowd", "env.max_agents=5", "algo.rnn=gru", "algo.rnn_size=8"),
    ],
    ids=lambda settings: settings[0].rpartition(":")[2],
)
def test_runs_can_be_trained_evaluated_and_loaded(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    train(run, "algo=ippo", "eval.every=40", "eval.episodes=2", "eval.num_envs=2", "algo.num_minibatches=1", *settings)
    assert main(["evaluate", str(run), "--episodes", "2", "--json"]) == 0
    assert '"return_mean"' in capsys.readouterr().out
    assert coterie.load(run).teams


def test_an_instance_reports_that_its_state_cannot_be_restored():
    env = make(SPREAD)
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    kind = registry.environment(SPREAD)
    instance = kind.instance(kind.Config())
    assert isinstance(instance, ParallelInstance)
    assert not isinstance(instance.env, TurnBasedEnv)
    with pytest.raises(UserError, match="cannot be restored"):
        instance.load_state_dict({})
    instance.close()
    instance.close()
