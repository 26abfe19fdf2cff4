"""Networks, optimizers and temperatures of SAC, by the settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything
from coterie.algos.sac import SACConfig, SACNetworks, Temperature
from coterie.nets.team import team_blocks
from policy_cases import CPU, draw

(TEAM,) = Everything("discrete").spec.default_teams()  # two guards that observe 5 numbers, a scout that observes 3
OBS, STATE, JOINT = 2 * 5 + 3, 5, 2 * 3 + 4


def networks(state_size: int = 0, **settings: Any) -> SACNetworks:
    small = {"hidden_sizes": (7,), "rnn_size": 6}
    config = SACConfig(**small | settings)
    return SACNetworks(config=config, team=TEAM, state_size=state_size, generator=draw(), device=CPU)


@pytest.mark.parametrize(
    ("critic", "state_size", "features"),
    [("own", 0, 5), ("own", 1, 5 + 1), ("joint", 0, 5 + OBS + JOINT), ("joint", 1, 5 + OBS + 1 + JOINT),
     ("state", STATE, 5 + STATE + JOINT), ("joint_state", STATE, 5 + OBS + STATE + JOINT)],
)  # fmt: skip
def test_critics_read_the_configured_inputs(critic: str, state_size: int, features: int):
    nets = networks(state_size, critic=critic, obs_agent_id=False)
    assert next(nets.critics.first_critic.heads["guard"].parameters()).shape == (features, 7)


@pytest.mark.parametrize(("settings", "units"), [({}, 7), ({"critic_hidden_sizes": (9,)}, 9)])
def test_hidden_layers_of_the_critics_are_the_policys_unless_configured(settings: dict[str, Any], units: int):
    nets = networks(critic="own", **settings)
    assert next(nets.critics.second_critic.heads["guard"].parameters()).shape[1] == units
    assert next(nets.policy.net.networks["guard"].parameters()).shape[1] == 7


def test_each_part_has_a_state_an_optimizer_and_a_target():
    nets = networks(tau=0.5, temperature=0.3, adam_eps=1e-3, weight_decay=0.5, max_grad_norm=0.25)
    parts = nets.parts()
    assert {
        name: parts[name] is value for name, value in vars(nets).items() if name not in ("critics",)
    } == dict.fromkeys(
        ("policy", "temperature", "target", "critic_optimizer", "policy_optimizer", "temperature_optimizer"), True
    )
    assert parts["critic"] is nets.critics
    assert len(parts) == 7
    assert [set(parts[f"{name}_optimizer"].flat) for name in ("critic", "policy", "temperature")] == [
        {"critic"}, {"policy"}, {"temperature"}
    ]  # fmt: skip
    before = [p.clone() for p in nets.target.module.parameters()]
    with torch.no_grad():
        for p in nets.critics.parameters():
            p += 1
    nets.target.update()
    for old, new in zip(before, nets.target.module.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.5)


def test_temperatures_have_neither_decay_nor_clipping():
    """With a weight decay of 0.5 or a clipped gradient, the moments would differ. The gradient of 3 sum(x) is 3."""
    nets = networks(temperature=0.3, weight_decay=0.5, max_grad_norm=0.1)
    norm = nets.temperature_optimizer.step(3 * nets.temperature.log.sum(), {"temperature": 0.01})
    assert norm.item() == pytest.approx(3 * 2**0.5)
    state = nets.temperature_optimizer.state_dict()["temperature"]
    torch.testing.assert_close(state["exp_avg"], torch.full((2,), 0.3))


def test_agents_of_a_block_have_one_temperature():
    temperature = Temperature(SACConfig().temperature_sizes(team_blocks(TEAM, "role")), 0.2, CPU)
    assert temperature.log.detach().exp().tolist() == pytest.approx([0.2, 0.2])
    assert temperature.index_of.tolist() == [0, 0, 1]
    assert temperature.log.requires_grad
