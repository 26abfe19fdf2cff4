"""Other teams as a global critic reads them: the policies of their next actions, statistics, vectors, checkpoints."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from coterie.algos.other_teams import OtherTeamsReader, TargetPolicyLearner
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action, OtherTeams
from coterie.policies.base import Policy

CPU = torch.device("cpu")
BOX = spaces.Box(-99, 99, (2,))
SIDES = EnvSpec(
    "sides",
    (
        RoleSpec("own", "own", ("own_0",), BOX, spaces.Discrete(2)),
        RoleSpec("pair", "pair", ("pair_0", "pair_1"), BOX, spaces.Discrete(3)),
        RoleSpec("last", "last", ("last_0",), BOX, spaces.Box(-1.0, 1.0, (1,))),
    ),
    {},
)
OWN, PAIR, LAST = SIDES.default_teams()


def reader(critic: str = "global", **settings: Any) -> OtherTeamsReader:
    given: dict[str, Any] = {"normalize_obs": True, "seed": 1} | settings
    return OtherTeamsReader(critic, OWN, CPU, **given)


def sides(seed: int = 0) -> OtherTeams:
    """The other teams at five timesteps of three environments."""
    draw = torch.Generator().manual_seed(seed)
    obs = {"pair": torch.randn(5, 3, 2, 2, generator=draw) * 3 + 1, "last": torch.randn(5, 3, 1, 2, generator=draw) - 4}
    action = {
        "pair": Action(torch.randint(3, (5, 3, 2, 1), generator=draw)),
        "last": Action(None, torch.rand(5, 3, 1, 1, generator=draw)),
    }
    mask = {"pair": torch.rand(5, 3, 2, 3, generator=draw) < 0.5}
    return OtherTeams(obs, mask, torch.rand(5, 3, 3, generator=draw) < 0.7, action)


class Recorder(Policy):
    """Keeps the arguments of `act` in `seen`. Of team `last` it gives the noise, which is drawn per environment."""

    def __init__(self, team: TeamSpec):
        self.team = team
        self.seen: list[Any] = []

    def initial_hidden_state(self, num_envs: int) -> Any:
        return {}

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Any]:
        return [{"x": torch.rand(num_envs, 1, 1, generator=generator)} for _ in range(steps)]

    def act(self, timestep: Any, hidden_state: Any, noise: Any, mode: Any) -> Any:
        self.seen.append((timestep, hidden_state, mode))
        return {"last": Action(None, noise["x"])} if self.team is LAST else {}, hidden_state, {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_other_policies_act_on_their_part_of_every_timestep():
    others, policy, of_pair = sides(), Recorder(LAST), Recorder(PAIR)
    found = reader()
    found.policies = (policy, of_pair)
    chosen = found.next_actions(others)
    ((timestep, hidden_state, mode),) = policy.seen
    assert set(timestep.obs) == {"last"}
    assert timestep.obs["last"].equal(others.obs["last"].view(15, 1, 2))
    assert (timestep.action_mask, timestep.state, hidden_state, mode) == ({}, {}, {}, "sample")
    assert timestep.alive.equal(others.alive.view(15, 3)[:, 2:])
    assert timestep.first.shape == (15, 1)
    assert not timestep.first.any()
    assert timestep.acted.tolist() == [True] * 15
    numbers = chosen["last"].continuous
    assert numbers.shape == (5, 3, 1, 1)
    assert len(numbers.unique()) == 15
    assert chosen["pair"] is others.action["pair"]
    ((timestep, *_),) = of_pair.seen
    assert timestep.action_mask["pair"].equal(others.action_mask["pair"].view(15, 2, 3))
    assert timestep.alive.equal(others.alive.view(15, 3)[:, :2])


def test_other_policies_act_at_a_single_timestep():
    others = tree_map(lambda x: x[0], sides())
    found = reader()
    found.policies = (Recorder(LAST),)
    assert found.next_actions(others)["last"].continuous.shape == (3, 1, 1)


class Learner(TargetPolicyLearner):
    """Stands for an algorithm with a target policy, which names itself."""

    capabilities = SimpleNamespace(learns=True)
    policy = Recorder(LAST)

    def policy_of_targets(self, *, target: bool) -> Any:
        return TARGET if target else ONLINE


TARGET, ONLINE = Recorder(LAST), Recorder(LAST)


def test_next_actions_come_from_target_policies_unless_configured():
    algorithm: Any = Learner()
    fixed: Any = SimpleNamespace(capabilities=SimpleNamespace(learns=False), policy=Recorder(PAIR))
    other: Any = SimpleNamespace(capabilities=SimpleNamespace(learns=True), policy=Recorder(PAIR))
    for settings, policy in (({}, TARGET), ({"target_policies": True}, TARGET), ({"target_policies": False}, ONLINE)):
        found = reader(**settings)
        assert found.policies == ()
        found.connect([algorithm, fixed, other])
        assert found.policies == (policy, other.policy)


def test_noise_continues_after_a_checkpoint():
    others = sides()
    one, same, other = reader(), reader(seed=1), reader(seed=2)
    for found in (one, same, other):
        found.policies = (Recorder(LAST),)
    draws = [found.next_actions(others)["last"].continuous for found in (one, same, other)]
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(draws[2])
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    again = [found.next_actions(others)["last"].continuous for found in (one, same, other)]
    assert again[0].equal(again[1])
    assert again[0].equal(again[2])
    assert not again[0].equal(draws[0])


def test_observations_are_normalized_by_those_of_agents_alive_before_final_timesteps():
    found, others, acted = reader(), sides(), torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) < 0.7
    for name, x in found.obs(others).items():
        torch.testing.assert_close(x, others.obs[name].clamp(-10, 10))
    found.update(others, acted)
    other = reader()
    other.load_state_dict(copy.deepcopy(found.state_dict()))
    for name, agents in (("pair", (0, 1)), ("last", (2,))):
        kept = [
            others.obs[name][t, b, i - agents[0]]
            for t in range(4) for b in range(3) for i in agents if acted[t, b] and others.alive[t, b, i]
        ]  # fmt: skip
        x = torch.stack(kept)
        assert len(kept) < 12 * len(agents)
        expected = (others.obs[name] - x.mean(0)) / x.std(0, correction=0)
        torch.testing.assert_close(found.obs(others)[name], expected, atol=1e-4, rtol=1e-4)
        assert other.obs(others)[name].equal(found.obs(others)[name])
    plain = reader(normalize_obs=False)
    plain.update(others, acted)
    plain.load_state_dict(plain.state_dict())
    assert all(plain.obs(others)[name] is x for name, x in others.obs.items())


def test_actions_are_vectors_and_those_of_dead_agents_zero():
    others = sides()
    vectors = reader().encode(others.action, others)
    assert {name: x.shape for name, x in vectors.items()} == {"pair": (5, 3, 2, 3), "last": (5, 3, 1, 1)}
    for t, b, i in ((t, b, i) for t in range(5) for b in range(3) for i in range(3)):
        if i < 2:
            one_hot = [float(a == others.action["pair"].discrete[t, b, i, 0]) for a in range(3)]
            found, expected = vectors["pair"][t, b, i].tolist(), one_hot
        else:
            found, expected = vectors["last"][t, b, 0].tolist(), others.action["last"].continuous[t, b, 0].tolist()
        assert found == (expected if others.alive[t, b, i] else [0.0] * len(expected))
    own = torch.ones(5, 3, 1, dtype=torch.bool)
    assert reader().with_alive(own, others).equal(torch.cat([own, others.alive], -1))


def test_a_critic_of_the_own_team_reads_nothing_of_others():
    found, others, own = reader("joint"), sides(), torch.ones(5, 3, 1, dtype=torch.bool)
    assert (found.roles, found.obs(others), found.actions(others), found.next_actions(others)) == ((), {}, {}, {})
    assert (found.encode(others.action, others), found.state_dict()) == ({}, {})
    assert found.with_alive(own, others) is own
    found.update(others, own[..., 0])
    found.load_state_dict({})
    alone = reader()
    assert (alone.actions(None), alone.next_actions(None), alone.encode({}, None)) == ({}, {}, {})
    assert alone.with_alive(own, None) is own
    alone.update(None, own[..., 0])
    with pytest.raises(AssertionError, match="does not record other teams"):
        alone.obs(None)
