"""Critics with an output per choice: their inputs joined by hand, and which inputs and actions they read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.nets.choice_critics import CounterfactualCritic, SoftCritic, TwinCritic
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.joint_actions import JointAction
from coterie.nets.team import team_blocks
from policy_cases import CPU, SMALL, draw, make_team


def team(equal_roles=False):
    """Two guards with 3 + 2 choices, a scout with 4 (or a third guard by another name)."""
    guards = RoleSpec("guard", "all", ("g0", "g1"), spaces.Box(-9, 9, (5,)), spaces.MultiDiscrete([3, 2]))
    scout = RoleSpec("scout", "all", ("s0",), spaces.Box(-9, 9, (3,)), spaces.Discrete(4))
    if equal_roles:
        scout = RoleSpec("scout", "all", ("s0",), guards.observation_space, guards.action_space)
    return EnvSpec("some", (guards, scout), {"global": 6}).default_teams()[0]


def critic(spec, joint=True, state=0, last=False, share="role", agent_id=True):
    config = NetworkConfig((16,), "tanh", share_params=share, obs_agent_id=agent_id)
    generator = torch.Generator().manual_seed(0)
    inputs = CentralInputs(joint, state)
    return CounterfactualCritic(spec, config, generator, CPU, inputs=inputs, reads_last_action=last)


def team_observations(spec, batch=4):
    generator = torch.Generator().manual_seed(1)
    sizes = {role.name: role.observation_space.shape[0] for role in spec.roles}
    return {role.name: torch.randn(batch, role.n, sizes[role.name], generator=generator) for role in spec.roles}


def joint_action(spec, guards, scout):
    actions = {"guard": Action(torch.tensor([guards])), "scout": Action(torch.tensor([scout]))}
    coder = JointAction(spec, CPU)
    return coder.join(coder.encode(actions))


def test_an_agents_values_do_not_depend_on_its_own_action():
    """Negative control: its values depend on the others' actions."""
    spec = team()
    net, obs = critic(spec), team_observations(spec, 1)
    others = joint_action(spec, [[0, 1], [2, 0]], [[3]])
    base = net(obs, None, others, None)
    for own in itertools.product(range(3), range(2)):
        q = net(obs, None, joint_action(spec, [list(own), [2, 0]], [[3]]), None)
        assert torch.equal(q[:, 0], base[:, 0])
        if own != (0, 1):
            assert (q[:, 1] != base[:, 1]).any()
            assert (q[:, 2, :4] != base[:, 2, :4]).any()
    for own in range(4):
        q = net(obs, None, joint_action(spec, [[0, 1], [2, 0]], [[own]]), None)
        assert torch.equal(q[:, 2], base[:, 2])


def test_padding_of_missing_choices_is_zero():
    spec = team()
    q = critic(spec)(team_observations(spec), None, torch.zeros(4, 14), None)
    assert q.shape == (4, 3, 5)
    assert (q[:, 2, 4:] == 0).all()
    assert (q[:, :2] != 0).all()


@pytest.mark.parametrize(("joint", "state"), [(True, 0), (False, 6), (True, 6)])
@pytest.mark.parametrize("last", [False, True])
def test_values_depend_on_the_configured_inputs(joint, state, last):
    spec = team()
    net, obs = critic(spec, joint, state, last), team_observations(spec)
    state_input, before = torch.randn(4, 6), torch.randn(4, 14)
    action = torch.zeros(4, 14)

    def q(obs, state_input, before):
        return net(obs, state_input if state else None, action, before if last else None)

    base = q(obs, state_input, before)
    moved = {"guard": obs["guard"], "scout": obs["scout"] + 1}
    assert (q(moved, state_input, before)[:, 0] != base[:, 0]).any() == joint  # another agent's observation
    assert (q(moved, state_input, before)[:, 2, :4] != base[:, 2, :4]).any()  # always its own
    assert (q(obs, state_input + 1, before) != base).any() == (state > 0)
    assert (q(obs, state_input, before + 1) != base).any() == last


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("agent_id", [True, False])
def test_agents_with_equal_observations_differ_by_id_or_parameters(share, agent_id):
    spec = team(equal_roles=True)
    net = critic(spec, share=share, agent_id=agent_id)
    obs = {"guard": torch.ones(1, 2, 5), "scout": torch.ones(1, 1, 5)}
    q = net(obs, None, torch.zeros(1, 15), None)
    assert (q[:, 0] != q[:, 1]).any() == (agent_id or share == "none")


HYBRID = make_team("hybrid")  # two guards that observe 5 numbers, a scout that observes 3; four choices and two numbers
JOINT = 3 * 6


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=draw(seed))


def observations(*lead: int) -> dict[str, Tensor]:
    return {"guard": numbers(*lead, 2, 5), "scout": numbers(*lead, 1, 3, seed=2)}


def actions(*lead: int, seed: int = 3) -> dict[str, Action]:
    found = {}
    for i, (name, n) in enumerate((("guard", 2), ("scout", 1))):
        choices = torch.randint(4, (*lead, n, 1), generator=draw(seed + i))
        found[name] = Action(choices, numbers(*lead, n, 2, seed=seed + 5 + i))
    return found


def vectors(action: dict[str, Action]) -> Tensor:
    """One-hot choices and numbers of every agent [.., 3, 6]."""
    parts = []
    for name in ("guard", "scout"):
        discrete, continuous = action[name].discrete, action[name].continuous
        assert discrete is not None
        assert continuous is not None
        parts.append(torch.cat([torch.nn.functional.one_hot(discrete[..., 0], 4).float(), continuous], -1))
    return torch.cat(parts, -2)


def critic_of(team: Any = HYBRID, central: CentralInputs | None = None, state_size: int = 0, **options: Any) -> Any:
    """A decentralized critic that reads a state, or a centralized one."""
    inputs, centralized = central or CentralInputs(False, state_size), central is not None
    config = replace(SMALL, **{name: options.pop(name) for name in set(options) - {"burn_in"}})
    return TwinCritic(team, config, draw(), CPU, inputs=inputs, centralized=centralized, **options)


def by_hand(critic: Any, obs: Any, extra: Tensor, read: Tensor, agent_id: bool = False) -> Tensor:
    """Q [.., 3, 4] of one critic from own observations, central features [.., D] and the actions that agents read."""
    found = []
    for name, agents in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
        lead = obs[name].shape[:-1]
        ids = torch.eye(lead[-1]).expand(*lead, -1)[..., : lead[-1] * agent_id]
        x = torch.cat([obs[name], extra.unsqueeze(-2).expand(*lead, -1), ids, read[..., agents, :]], -1)
        found.append(critic.heads[name](x, None, {})[0])
    return torch.cat(found, -2)


@pytest.mark.parametrize("agent_id", [False, True])
@pytest.mark.parametrize("state_size", [0, 2])
def test_a_decentralized_critic_reads_own_observations_and_numbers_and_a_state(agent_id: bool, state_size: int):
    critic, obs, action = critic_of(obs_agent_id=agent_id, state_size=state_size), observations(4), actions(4)
    extra, read = numbers(4, state_size, seed=9), vectors(action)[..., 4:]
    state = extra if state_size else None
    found = critic(obs, state, action, None, None)
    assert found.shape == (2, 4, 3, 4)
    for k, part in enumerate((critic.first_critic, critic.second_critic)):
        torch.testing.assert_close(found[k], by_hand(part, obs, extra, read, agent_id))
    assert not torch.allclose(found[0], found[1])
    other = actions(4, seed=8)
    torch.testing.assert_close(critic(obs, state, action, other, None), critic(obs, state, other, None, None))


@pytest.mark.parametrize(("joint_obs", "state_size"), [(True, 0), (False, 5), (True, 5)])
def test_a_centralized_critic_reads_central_inputs_and_the_others_actions(joint_obs: bool, state_size: int):
    """Its own choices are hidden, its own numbers are not; those of dead agents are zero."""
    critic = critic_of(central=CentralInputs(joint_obs, state_size))
    obs, action, state = observations(4), actions(4), numbers(4, 5, seed=9)
    central = torch.cat([*[x.flatten(1) for x in obs.values() if joint_obs], *[state] * (state_size > 0)], -1)
    for alive in (None, torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 0, 0]]).bool()):
        for own in (None, actions(4, seed=8)):
            found = critic(obs, state if state_size else None, action, own, None, alive)
            entries, replaced = vectors(action), vectors(own or action)
            if alive is not None:
                entries = entries * alive.unsqueeze(-1)
            read = torch.zeros(4, 3, JOINT)
            for m, i, j in ((m, i, j) for m in range(4) for i in range(3) for j in range(3)):
                at = slice(6 * j, 6 * j + 6)
                read[m, i, at] = entries[m, j]
                if i == j:
                    read[m, i, at][:4] = 0
                    if own is not None:
                        read[m, i, at][4:] = replaced[m, j, 4:]
            torch.testing.assert_close(found[0], by_hand(critic.first_critic, obs, central, read))


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_values_of_one_agent_are_its_part_of_the_teams(rnn: str):
    """With actions that it replaces its own numbers by, and those of dead agents masked."""
    critic = critic_of(central=CentralInputs(True), rnn=rnn, rnn_size=6)
    obs, action, alive = observations(3, 4), actions(3, 4), numbers(3, 4, 3) > -0.5
    first = None if rnn == "none" else numbers(3, 4, 3, seed=4) > 0.5
    features = critic.encode(obs, None, first)
    for present in (None, alive):
        whole = critic(obs, None, action, None, first, present)
        for agent in range(3):
            found = critic.of_agent(agent, features, action, present)
            torch.testing.assert_close(found, whole[..., agent : agent + 1, :])


def test_gradients_reach_only_an_agents_own_numbers():
    critic, obs, action = critic_of(central=CentralInputs(True)), observations(4), actions(4)
    own = actions(4, seed=8)
    for part in own.values():
        assert part.continuous is not None
        part.continuous.requires_grad_()
    q = critic(obs, None, action, own, None)
    scout, guard = own["scout"].continuous, own["guard"].continuous
    found = torch.autograd.grad(q[:, :, 2].sum(), [scout, guard], allow_unused=True, retain_graph=True)
    assert found[0].abs().sum() > 0
    assert found[1] is None or found[1].abs().sum() == 0
    (first,) = torch.autograd.grad(q[:, :, 0].sum(), [guard])
    assert first[:, 0].abs().sum() > 0
    assert first[:, 1].abs().sum() == 0


def test_taken_choices_are_ones_and_agents_without_choices_have_one_entry():
    action = actions(4)
    assert torch.equal(critic_of().taken(action), vectors(action)[..., :4])
    team = make_team("continuous")
    numbers_only = {name: Action(None, part.continuous) for name, part in action.items()}
    critic = critic_of(team)
    assert torch.equal(critic.taken(numbers_only), torch.ones(4, 3, 1))
    assert critic(observations(4), None, numbers_only, None, None).shape == (2, 4, 3, 1)
    choices_only = {name: Action(part.discrete) for name, part in action.items()}
    assert critic_of(make_team("discrete"))(observations(4), None, choices_only, None, None).shape == (2, 4, 3, 4)


def test_taken_choices_of_agents_with_fewer_of_them_are_padded_with_zeros():
    """Guards choose among four, the scout among two and one number, the third agent a number alone."""
    box, number = spaces.Box(-9, 9, (3,)), spaces.Box(-1.0, 1.0, (1,))
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), box, spaces.Discrete(4)),
        RoleSpec("scout", "all", ("scout_0",), box, spaces.Tuple((spaces.Discrete(2), number))),
        RoleSpec("third", "all", ("third_0",), box, number),
    )
    (team,) = EnvSpec("three", roles, {}).default_teams()
    action = {
        "guard": Action(torch.tensor([[[1], [3]]])),
        "scout": Action(torch.tensor([[[1]]]), torch.full((1, 1, 1), 0.5)),
        "third": Action(None, torch.full((1, 1, 1), -0.5)),
    }
    found = critic_of(team).taken(action)
    assert found.tolist() == [[[0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0]]]


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_recurrent_critics_read_sequences_of_observations_from_zero(rnn: str, burn_in: int):
    """Earlier actions have no influence, earlier observations have; no gradient flows through the burn-in."""
    critic = critic_of(rnn=rnn, rnn_size=6, burn_in=burn_in)
    first = torch.zeros(4, 2, 3, dtype=torch.bool)
    obs, action = observations(4, 2), actions(4, 2)
    obs["scout"].requires_grad_()
    q = critic(obs, None, action, None, first)
    assert q.shape == (2, 4, 2, 3, 4)
    other = actions(4, 2, seed=8)
    other = {
        name: Action(
            *(
                torch.cat([b[:3], a[3:]])
                for a, b in zip(vars(action[name]).values(), vars(other[name]).values(), strict=True)
            )
        )
        for name in action
    }
    torch.testing.assert_close(critic(obs, None, other, None, first)[:, 3], q[:, 3])
    (gradient,) = torch.autograd.grad(q[:, 3, :, 2].sum(), obs["scout"], retain_graph=True)
    assert [bool(x.any()) for x in gradient] == [burn_in == 0, burn_in == 0, True, True]
    part = critic.first_critic
    start = {key: torch.zeros(2, 1, 6) for key in ("h", "c")[: 2 if rnn == "lstm" else 1]}
    history, _ = part.histories["scout"](obs["scout"], first[..., 2:], start)
    assert action["scout"].continuous is not None
    expected = part.heads["scout"](torch.cat([history, action["scout"].continuous], -1), None, {})[0]
    torch.testing.assert_close(q[0, :, :, 2:], expected)


@pytest.mark.parametrize(("share", "sets"), [("role", None), ("none", 2)])
def test_critics_have_parameter_sets_like_the_policy(share: str, sets: int | None):
    critic = critic_of(share_params=share)
    assert critic.first_critic.heads["guard"].sets == sets
    assert [block.name for block in critic.blocks] == ["guard", "scout"]
    single = SoftCritic(HYBRID, {"guard": 0, "scout": 0}, SMALL, draw(), inputs=CentralInputs(False), burn_in=0)
    assert single(observations(4), None, {}, None, {}).shape == (4, 3, 4)
    assert single.blocks == team_blocks(HYBRID, "role")
