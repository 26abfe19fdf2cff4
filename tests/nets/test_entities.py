"""Networks that read entities: declarations, tokens against a loop, absent entities, aimed actions, any number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec, Entities, EnvSpec, ObservationParts, RoleSpec, TeamSpec
from coterie.envs import registry
from coterie.envs.make import spec_of
from coterie.nets.config import NetworkConfig
from coterie.nets.entities import EntityBody, EntityNetwork, require_entities
from coterie.nets.team import TeamNetwork, team_blocks
from coterie.nets.team_view import VIEW
from coterie.nets.view_reader import EntityNormalizer, ViewReader
from policy_cases import CPU, draw

CONFIG = NetworkConfig((8,), "tanh", body="attention", heads=2, part="q", view="entities")


def parts(enemies: int, allies: int, first: int = 2) -> ObservationParts:
    """Own [2], positions [2] of enemies, then their healths [1], allies [3]; choice `first + k` aims at enemy k."""
    return ObservationParts(
        (
            Entities.rows(
                "enemy",
                (2, 2),
                (2 + 2 * enemies, 1),
                count=enemies,
                choices=range(first, first + enemies),
                absent=(0, 0, 0),
            ),
            Entities.rows("own", (0, 2)),
            Entities.rows("ally", (2 + 3 * enemies, 3), count=allies),
        )
    )


def make_team(enemies: int = 2, agents: int = 3) -> TeamSpec:
    size = 2 + 3 * enemies + 3 * (agents - 1)
    role = RoleSpec(
        "unit", "all", tuple(f"unit_{i}" for i in range(agents)), spaces.Box(-9, 9, (size,)),
        spaces.Discrete(2 + enemies), parts=parts(enemies, agents - 1),
    )  # fmt: skip
    return EnvSpec("battle", (role,), {}, agents_can_die=True).default_teams()[0]


def observations(team: TeamSpec, samples: int = 4) -> Tensor:
    size = (team.roles[0].observation_space.shape or ())[0]
    return torch.randn(samples, team.n, size, generator=draw(5))


def q_values(net: TeamNetwork, team: TeamSpec, obs: Tensor) -> Tensor:
    view = ViewReader(team, net.blocks, CONFIG)({"unit": obs}, torch.ones(obs.shape[:-1], dtype=torch.bool))
    return net({"unit": obs, VIEW: view}, None, {})[0]["unit"]


def test_rows_of_features() -> None:
    enemy, own, ally = parts(2, 1).entities
    assert enemy.features == ((2, 3, 6), (4, 5, 7))
    assert (enemy.choices, enemy.count, enemy.size) == ((2, 3), 2, 3)
    assert own.features == ((0, 1),)
    assert ally.features == ((8, 9, 10),)


ROWS, OWN = Entities.rows, Entities.rows("own", (0, 2))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ObservationParts((ROWS("ally", (0, 2)),)), "the agent itself has to be the only entity of kind 'own'"),
        (ObservationParts((OWN, *[ROWS("x", (2, 1))] * 2)), "a kind of entities is given twice, of own, x, x"),
        (ObservationParts((OWN, Entities("x", ((2,), (3, 4))))), "entities of kind 'x' need equally many features"),
        (ObservationParts((OWN, ROWS("x", (2, 1), absent=(0, 0)))), "of kind 'x' have 1 features, and 2 when absent"),
        (ObservationParts((OWN, ROWS("x", (2, 1), choices=(1, 2)))), "2 choices aim at 1 entities of kind 'x'"),
        (ObservationParts((OWN, ROWS("x", (2, 1), choices=(9,)))), "choices [9] aim at entities, and the actions are"),
        (ObservationParts(position=(9,)), "there is no index 9 in an observation of 8 numbers"),
        (ObservationParts((OWN,), (0, 1)), ""),
    ],
)
def test_declarations_that_do_not_fit_say_why(found: ObservationParts, problem: str) -> None:
    assert problem in (found.problem(8, ActionSpec((4,))) or "")
    assert bool(problem) is bool(found.problem(8, ActionSpec((4,))))


def test_own_environments_without_entities_are_refused_in_one_line() -> None:
    role = RoleSpec("unit", "all", ("unit_0",), spaces.Box(-9, 9, (5,)), spaces.Discrete(4))
    with pytest.raises(UserError, match=r"role 'unit' declares no entities.*ObservationParts\. Choose another network"):
        require_entities((role,))


def test_built_in_worlds_declare_entities_that_fit() -> None:
    for name in ("particle/simple_spread", "particle/simple_tag", "skirmish/3m", "skirmish/2s3z", "foraging/8x8-2p-2f"):
        assert name in registry.environments()
        for role in spec_of(name).roles:
            size = (role.observation_space.shape or ())[0]
            assert role.parts.entities, name
            assert role.parts.problem(size, role.action) is None
            used = [i for part in role.parts.entities for features in part.features for i in features]
            assert len(set(used)) == len(used)
            unused = size - len(used)
            assert unused == (4 if name == "particle/simple_spread" else 0)  # zeros


def test_actions_at_entities_are_scored_by_their_tokens() -> None:
    team = make_team()
    net = TeamNetwork(team, {"unit": 4}, CONFIG, draw(), head_gain=1.0)
    network = net.networks["unit"]
    assert isinstance(network, EntityNetwork)
    obs = observations(team)
    found = q_values(net, team, obs)
    tokens = network.tokens(obs, None, None).view(4, 3, 5, 8)
    h = tokens[:, :, 0]
    own = h @ network.head.weight + network.head.bias
    query = h @ network.queries["enemy"].weight + network.queries["enemy"].bias
    aimed = torch.stack([(query * tokens[:, :, 1 + k]).sum(-1) for k in range(2)], -1) / 8**0.5
    torch.testing.assert_close(found, torch.cat([own, aimed], -1))
    # Exchanging two enemies exchanges the values of the actions that aim at them.
    swapped = obs[..., [0, 1, 4, 5, 2, 3, 7, 6, *range(8, obs.shape[-1])]]
    torch.testing.assert_close(q_values(net, team, swapped), found[..., [0, 1, 3, 2]])


def test_choices_that_aim_may_come_first() -> None:
    role = make_team().roles[0]
    role = replace(role, parts=parts(2, 2, first=0))
    network = EntityNetwork((role,), 3, 4, CONFIG, draw(), head_gain=1.0)
    obs = torch.randn(6, 3, 14, generator=draw(2))
    found, _ = network(obs, None, {})
    tokens = network.tokens(obs, None, None)
    torch.testing.assert_close(found.flatten(0, 1)[:, 2:], network.head(tokens[:, 0]))


def test_absent_entities_have_no_influence() -> None:
    team = make_team()
    net = TeamNetwork(team, {"unit": 4}, CONFIG, draw(), head_gain=1.0)
    obs = observations(team)
    obs[..., [4, 5, 7]] = 0  # enemy 1 is not seen
    body: EntityBody = net.networks["unit"].body
    few = EntityBody(require_entities((make_team(1).roles[0],)), 0, CONFIG, draw())
    few.load_state_dict(body.state_dict())
    without = obs[..., [0, 1, 2, 3, 6, *range(8, 14)]].flatten(0, 1)
    tokens = net.networks["unit"].tokens(
        obs,
        None,
        ViewReader(team, net.blocks, CONFIG)({"unit": obs}, torch.ones(4, 3, dtype=torch.bool)).present["unit"],
    )
    torch.testing.assert_close(tokens[:, [0, 1, 3, 4]], few(without, None, None))


def test_only_the_agents_own_token_is_computed_where_no_action_aims() -> None:
    config = replace(CONFIG, part="critic", rounds=2)
    role = make_team().roles[0]
    body = EntityBody(require_entities((role,)), 0, config, draw())
    everything = EntityBody(require_entities((role,)), 0, replace(config, part="q"), draw())
    obs, seen = torch.randn(6, 14, generator=draw(2)), torch.rand(6, 4, generator=draw(3)) < 0.5
    for parameter in (*body.parameters(), *everything.parameters()):  # biases are zero at the start
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw(parameter.numel())))
    for present in (None, seen):
        found, expected = (net(obs, None, present)[:, :1] for net in (body, everything))
        assert body(obs, None, present).shape == (6, 1, 8)
        torch.testing.assert_close(found, expected)
        gradients = [
            torch.autograd.grad(x.square().sum(), [*net.parameters()])
            for x, net in ((found, body), (expected, everything))
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_parameters_and_statistics_fit_any_number() -> None:
    small, large = make_team(2, 3), make_team(5, 10)
    nets = [TeamNetwork(team, {"unit": team.roles[0].action.mask_size}, CONFIG, draw()) for team in (small, large)]
    nets[1].load_state_dict(nets[0].state_dict())
    normalizers = [EntityNormalizer(team_blocks(team, "role"), CPU) for team in (small, large)]
    obs = 3 + 2 * observations(small, 500)
    normalizers[0].update({"unit": obs}, torch.ones(500, 3, dtype=torch.bool))
    normalizers[1].load_state_dict(normalizers[0].state_dict())
    found = normalizers[1]({"unit": 3 + 2 * observations(large, 500)})["unit"]
    assert found.mean().item() == pytest.approx(0, abs=0.05)
    assert found.std().item() == pytest.approx(1, abs=0.05)


def test_statistics_of_a_kind_are_those_of_all_its_entities_that_are_seen() -> None:
    team = make_team(2, 2)
    normalizer = EntityNormalizer(team_blocks(team, "role"), CPU)
    obs = torch.zeros(1, 2, 11)
    obs[0, 0] = torch.tensor([5.0, 6, 1, 2, 0, 0, 3, 0, 7, 8, 9])  # sees one enemy
    obs[0, 1] = torch.tensor([9.0, 9, 3, 4, 5, 6, 5, 7, 7, 8, 9])  # sees both, and is dead
    normalizer.update({"unit": obs}, torch.tensor([[True, False]]))
    assert {name: moments["mean"].tolist() for name, moments in normalizer.state_dict().items()} == {
        "unit own": [5, 6],
        "unit enemy": [1, 2, 3],
        "unit ally": [7, 8, 9],
    }
    obs[0, 1, 0] = 15
    normalizer.update({"unit": obs}, torch.tensor([[False, True]]))
    assert normalizer.state_dict()["unit enemy"]["count"].item() == 3
    assert normalizer.state_dict()["unit enemy"]["mean"].tolist() == [3, 4, 5]
    scale = normalizer.scales["unit"].get_buffer("mean")
    assert scale.tolist() == [10, 7.5, 3, 4, 3, 4, 5, 5, 7, 8, 9]
