"""Scripted teams without an environment: their settings, the actions that are refused, and their policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.scripted import Scripted, ScriptedConfig
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.types import Action
from policy_cases import CPU, make_timestep

SPACE = spaces.Tuple((spaces.MultiDiscrete([3, 2]), spaces.Box(-1.0, 1.0, (2,))))
ROLES = (
    RoleSpec("guard", "all", ("guard_0", "guard_1"), spaces.Box(-9, 9, (5,)), SPACE),
    RoleSpec("scout", "all", ("scout_0",), spaces.Box(-9, 9, (3,)), spaces.Discrete(4)),
)
TEAM = TeamSpec("red", ROLES, 0, 3, (0,), False, False, {}, True)
TIMESTEP = make_timestep(TEAM, 2)


def actions(**changes: Any) -> dict[str, Any]:
    """Valid actions of two environments; changes by `role_part`."""
    found = {
        "guard": Action(torch.tensor([[[2, 1], [0, 0]]] * 2), torch.zeros(2, 2, 2)),
        "scout": Action(torch.tensor([[[3]], [[0]]])),
    }
    for name, value in changes.items():
        role, part = name.split("_")
        found[role] = replace(found[role], **{part: value})
    return found


def act(given: Any, checked: bool = True, mask: Any = None) -> Any:
    algo = learner()
    algo.set_script(lambda timestep: given() if callable(given) else given, "walk", checked)
    timestep = TIMESTEP if mask is None else replace(TIMESTEP, action_mask=mask)
    return algo.policy.act(timestep, {}, {}, "sample")


def learner(length: int | None = None) -> Scripted:
    context = AlgorithmContext(team=TEAM, num_envs=2, seed=0, device=CPU, rollout_length=length)
    return Scripted(ScriptedConfig(rollout_length=7), context)


@pytest.mark.parametrize("checked", [False, True])
def test_valid_actions_are_returned_as_they_are(checked: bool):
    given = actions()
    found, hidden_state, extras = act(given, checked)
    assert found is given
    assert (hidden_state, extras) == ({}, {})
    allowed = {"guard": torch.tensor([[[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]] * 2).bool()}
    assert act(given, checked, allowed)[0] is given


def test_the_script_is_the_policy_and_learns_nothing():
    algo = learner()
    with pytest.raises(UserError, match=r"^team 'red': it is scripted and has no script. Set algo.script=NAME.$"):
        _ = algo.policy
    algo.set_script(lambda timestep: actions(), "walk", True)
    assert algo.policy.initial_hidden_state(4) == {}
    assert algo.policy.draw_noise(3, 4, torch.Generator()) == [{}, {}, {}]
    assert algo.update(None, 0.5) == {}  # pyright: ignore[reportArgumentType]
    assert algo.state_dict() == {"policy": {}}
    algo.load_state_dict(algo.state_dict())


def fail() -> None:
    raise ValueError("too\nfast")


def refuse() -> None:
    raise UserError("stop here")


START = "^team 'red': script 'walk' "
GUARD = r"Return int64 \[2, 2, 2\] on cpu, by environment, agent and component.$"
WRONG: list[tuple[Any, str]] = [
    (fail, START + "failed: .*too.*fast.*. Fix the script.$"),
    (refuse, "^stop here$"),
    ([1], START + r"returned a list. Return a dict with an Action for each of \['guard', 'scout'\].$"),
    ({"guard": None}, START + r"returned the roles \['guard'\]. Return a dict"),
    (actions() | {"scout": 3}, START + "returned a int for role 'scout'. Return a coterie.core.types.Action.$"),
    (actions(scout_continuous=torch.zeros(2, 1, 1)),
     START + "returned continuous actions for role 'scout', which has none. Leave them None.$"),
    (actions(scout_discrete=None),
     START + r"returned no discrete actions for role 'scout'. Return int64 \[2, 1, 1\] on cpu.$"),
    (actions(guard_discrete=torch.zeros(2, 2, 1, dtype=torch.int64)),
     START + r"returned int64 \[2, 2, 1\] on cpu as discrete actions of role 'guard'. " + GUARD),
    (actions(guard_discrete=torch.zeros(2, 2, 2, dtype=torch.int32)), r"returned int32 \[2, 2, 2\] on cpu as disc"),
    (actions(guard_discrete=torch.zeros(2, 2, 2, dtype=torch.int64, device="meta")), r"returned int64 .* on meta as"),
    (actions(guard_continuous=torch.zeros(2, 2, 2).double()),
     r"returned float64 \[2, 2, 2\] on cpu as continuous actions of role 'guard'. Return float32 \[2, 2, 2\] on cpu"),
    (actions(guard_discrete=torch.tensor([[[2, 1], [0, 0]], [[0, 0], [1, 2]]])),
     START + "chose 2 for agent 'guard_1' in environment 1. Choose 0 to 1.$"),
    (actions(guard_discrete=torch.tensor([[[3, 1], [0, 0]], [[0, 0], [1, 1]]])),
     START + "chose 3 for agent 'guard_0' in environment 0. Choose 0 to 2.$"),
    (actions(scout_discrete=torch.tensor([[[0]], [[-1]]])),
     START + "chose -1 for agent 'scout_0' in environment 1. Choose 0 to 3.$"),
    (actions(guard_discrete=torch.tensor([[[0, 0], [0, 7]], [[9, 0], [0, 0]]])),
     START + "chose 7 for agent 'guard_1' in environment 0. Choose 0 to 1.$"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_actions_of_a_users_script_are_refused_in_one_line(given: Any, message: str):
    with pytest.raises(UserError, match=message) as refused:
        act(given)
    assert "\n" not in str(refused.value)
    if not callable(given):
        assert act(given, checked=False)[0] is given


@pytest.mark.parametrize(("place", "chosen"), [((1, 1, 3), 0), ((0, 0, 4), 1), ((0, 0, 2), 2)])
def test_a_masked_choice_is_refused(place: tuple[int, int, int], chosen: int):
    """Three choices of the first component, then two of the second."""
    mask = torch.ones(2, 2, 5, dtype=torch.bool)
    mask[place] = False
    message = rf"chose {chosen} for agent 'guard_{place[1]}' in environment {place[0]}, which is masked. Choose where "
    with pytest.raises(UserError, match=message + r"timestep.action_mask\['guard'\] is True.$"):
        act(actions(), mask={"guard": mask})
