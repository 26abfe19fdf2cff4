"""Assignment of roles to teams."""

from __future__ import annotations

import pytest
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.teams import assign


def _spec() -> EnvSpec:
    def role(name: str, group: str, n: int) -> RoleSpec:
        agents = tuple(f"{name}_{i}" for i in range(n))
        return RoleSpec(name, group, agents, spaces.Box(-1, 1, (3,)), spaces.Discrete(5))

    return EnvSpec("world", (role("wolf", "hunters", 2), role("hound", "hunters", 1), role("deer", "prey", 3)), {})


def _shape(teams: dict[str, list[str] | None]) -> dict[str, list[str]]:
    return {team.name: [role.name for role in team.roles] for team in assign(teams, _spec())}


def test_by_default_groups_are_teams():
    assert _shape({}) == {"hunters": ["wolf", "hound"], "prey": ["deer"]}
    assert _shape({"prey": None}) == {"hunters": ["wolf", "hound"], "prey": ["deer"]}


def test_roles_can_be_split_joined_and_renamed():
    assert _shape({"wolf": None, "hound": None}) == {"wolf": ["wolf"], "hound": ["hound"], "prey": ["deer"]}
    assert _shape({"all": ["deer", "hound", "wolf"]}) == {"all": ["wolf", "hound", "deer"]}
    assert [(t.start, t.stop) for t in assign({}, _spec())] == [(0, 3), (3, 6)]


@pytest.mark.parametrize(
    ("teams", "message"),
    [
        ({"pray": None}, "no team 'pray'. Did you mean 'prey'"),
        ({"a": ["wolff"]}, "no role 'wolff'. Did you mean 'wolf'"),
        ({"a": ["wolf"], "b": ["wolf"]}, "role 'wolf' is in two teams"),
        ({"a": ["wolf", "wolf"]}, "named twice"),
        ({"a": ["wolf", "deer"]}, "not consecutive"),
        ({"hunters": ["wolf"]}, "role 'hound' would be left to team 'hunters'"),
    ],
)
def test_impossible_teams_are_errors(teams: dict[str, list[str] | None], message: str):
    with pytest.raises(UserError) as error:
        assign(teams, _spec())
    assert message in str(error.value)
