"""ICM and RND: their rewards by formula, what they learn, what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from algos.test_every import Sensing
from algos.worlds import Everything, Probe, env_of
from coterie.collect import Collector
from coterie.errors import UserError
from coterie.math.curiosity import squared_error
from coterie.policy import RandomPolicy
from coterie.registry import signal
from coterie.rewards.config import IcmConfig, RndConfig
from coterie.rewards.scale import RewardScale
from coterie.rewards.signal import seen
from coterie.types import Window, tree_leaves, tree_map

CPU = torch.device("cpu")
CONFIGS: dict[str, Any] = {"icm": IcmConfig, "rnd": RndConfig}
NAMES = list(CONFIGS)
SMALL = {"hidden": (8,), "features": 4}


def made(name: str, world: Any, copies: int = 8, **settings: Any) -> tuple[Any, Collector]:
    """A signal of the world's only team, and a collector that plays it at random."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    one = signal(name)(team, CONFIGS[name](**SMALL | settings), copies, 0, CPU)
    return one, Collector(env, {team.name: RandomPolicy(team, CPU)}, seed=0)


def window_of(collector: Collector, steps: int = 12) -> Window:
    (window,) = collector.advance(steps)[0].values()
    return window


def walk() -> Probe:
    """Shows a number that lasts, its age, and nothing else; every step looks otherwise."""
    return Probe(
        lambda x, age: torch.stack((x, age), -1).unsqueeze(1), lambda x, age, d, c: torch.zeros(len(x), 1), size=2,
        length=5,
    )  # fmt: skip


class Odd(Probe):
    """Shows what was chosen last, and so what the choice was."""

    def __init__(self) -> None:
        super().__init__(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: torch.zeros(len(x), 1), length=50)

    def step(self, state: Any, action: Any, noise: Any) -> Any:
        state, outcome = super().step(state, action, noise)
        return state | {"x": action["agent"].discrete[:, 0, 0].float()}, outcome


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_rewarded_before_the_first_update_and_something_after_it(name: str):
    one, collector = made(name, walk())
    window = window_of(collector)
    assert (one.reward(window) == 0).all()
    one.update(window)
    assert (one.reward(window)[seen(window)] > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_who_did_not_act_or_saw_nothing_of_it_is_not_rewarded(name: str):
    one, collector = made(name, Everything())
    for _ in range(2):
        window = window_of(collector)
        reward = one.reward(window)
        one.update(window)
    assert not seen(window).all()
    assert (reward[~seen(window)] == 0).all()
    assert (reward[seen(window)] > 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_in_dead_places_changes_nothing(name: str):
    """The control: what the living see does."""
    world = Everything(dead=0.0)
    one, collector = made(name, world)
    other, same = made(name, world)[0], made(name, world)[0]
    window = window_of(collector)
    dead = ~window.alive
    filled = {}
    for role, where in (("guard", dead[..., :2]), ("scout", dead[..., 2:])):
        filled[role] = torch.where(where.unsqueeze(-1), 1e6, window.obs[role])
    spoilt = replace(window, obs=filled)
    changed = replace(window, obs={role: x + 1.0 * torch.randn(x.shape) for role, x in window.obs.items()})
    results = []
    for signal_, lived in ((one, window), (other, spoilt), (same, changed)):
        signal_.reward(lived)
        metrics = signal_.update(lived)
        again = torch.where(seen(window), signal_.reward(lived), 0.0)
        results.append((metrics, again))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][0] != results[2][0]


def test_icms_reward_is_the_error_of_its_forward_model_and_at_most_one_when_weighted():
    one, collector = made("icm", walk(), strength=0.5, eta=3.0, normalise_obs=False)
    window = window_of(collector)
    one.reward(window)
    one.update(window)
    models, block = one.models, one.models.blocks[0]
    with torch.no_grad():
        features = models.encode(window.obs)["agent"]
        told = models.ahead(block, features[:-1], window.action["agent"])
    error = torch.where(seen(window), squared_error(told, features[1:]), 0.0)
    torch.testing.assert_close(one.reward(window), (3.0 * error).clamp(max=2.0))
    with torch.no_grad():
        for parameter in models.forth.parameters():
            parameter += 5.0
    assert float(one.reward(window).max()) == 2.0


def test_icms_inverse_model_learns_what_can_be_seen_and_not_what_cannot():
    loss = {}
    for world in (Odd(), walk()):
        one, collector = made("icm", world, copies=32, lr=1e-2, beta=0.0)
        for _ in range(25):
            window = window_of(collector)
            one.reward(window)
            loss[type(world)] = one.update(window)["loss/icm_inverse"]
    assert loss[Odd] < 0.1
    assert loss[Probe] > 0.6  # ln 2 is chance


@pytest.mark.parametrize("name", NAMES)
def test_what_was_learned_from_is_rewarded_less_than_what_is_new(name: str):
    """RND of other observations, ICM of other outcomes."""
    one, collector = made(name, walk(), copies=16, lr=1e-2, normalise_obs=False)
    window = window_of(collector)
    for _ in range(60):
        old = one.reward(window)[seen(window)].mean()
        one.update(window)
    other = replace(window, obs=tree_map(lambda x: -2 * x.flip(0), window.obs))
    assert float(one.reward(other)[seen(window)].mean()) > 5 * float(old)


def test_rnds_target_never_changes_and_its_predictor_does():
    one, collector = made("rnd", walk())
    before = [[x.clone() for x in net.parameters()] for net in (one.target, one.predictor)]
    window = window_of(collector)
    one.reward(window)
    one.update(window)
    assert all(torch.equal(a, b) for a, b in zip(before[0], one.target.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before[1], one.predictor.parameters(), strict=True))


def test_rnd_reads_the_row_that_a_step_led_to():
    one, collector = made("rnd", walk())
    window = window_of(collector, steps=10)
    one.reward(window)
    one.update(window)
    reward = one.reward(window)
    begun = replace(window, obs={"agent": torch.cat([window.obs["agent"][:1] + 9.0, window.obs["agent"][1:]])})
    assert torch.equal(one.reward(begun), reward)
    last = replace(window, obs={"agent": torch.cat([window.obs["agent"][:-1], window.obs["agent"][-1:] + 9.0])})
    live = seen(window)[-1]
    assert (one.reward(last)[-1][live] != reward[-1][live]).any()


def test_observations_are_scaled_by_what_was_seen_and_clipped():
    one, collector = made("rnd", walk())
    window = window_of(collector)
    one.reward(window)
    one.update(window)
    far = one._obs_scale({"agent": torch.full((1, 1, 2), 1e4)})["agent"]
    assert far.flatten().tolist() == [5.0, 5.0]
    other, _ = made("rnd", walk(), normalise_obs=False)
    other.reward(window)
    other.update(window)
    assert float(other._obs_scale({"agent": torch.full((1, 1, 2), 1e4)})["agent"].max()) == 1e4


def test_rewards_are_divided_by_the_spread_of_their_running_returns():
    scale = RewardScale(True, 1, 1, 0.5, CPU)
    live = torch.ones(2, 1, 1, dtype=torch.bool)
    reward = torch.tensor([2.0, 5.0]).view(2, 1, 1)
    assert torch.equal(scale(reward), reward)  # nothing is known yet
    scale.observe(reward, live)  # running returns 2 and 6: their spread is 2
    assert scale(reward).flatten().tolist() == [1.0, 2.5]
    scale.observe(torch.tensor([7.0, 0.0]).view(2, 1, 1), live & torch.tensor([True, False]).view(2, 1, 1))
    # the next one is 3 + 7 = 10, and what does not count is left out: 2, 6, 10
    assert float(scale(torch.ones(1, 1, 1))) == pytest.approx((32 / 3) ** -0.5)
    off = RewardScale(False, 1, 1, 0.5, CPU)
    off.observe(reward, live)
    assert torch.equal(off(reward), reward)


@pytest.mark.parametrize("name", NAMES)
def test_a_role_has_modules_of_its_own_and_an_agent_if_asked_for(name: str):
    one, _ = made(name, Everything())
    sets = [net for net in vars(one).values() if isinstance(net, torch.nn.Module)]
    names = {key for net in sets for key, _ in net.named_parameters()}
    assert {part for key in names for part in key.split(".") if part in {"guard", "scout"}} == {"guard", "scout"}
    single, _ = made(name, Everything(), share="none")
    shapes = [p.shape for net in vars(single).values() if isinstance(net, torch.nn.Module) for p in net.parameters()]
    assert any(shape[0] == 2 and len(shape) == 3 for shape in shapes)
    with pytest.raises(UserError, match=f"rewards.{name}.share=all needs roles with equal spaces"):
        made(name, Everything(), share="all")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "world", [Sensing(), Everything("hybrid"), Everything("multi_discrete")], ids=lambda w: w.spec.name
)
def test_pictures_several_sensors_and_all_actions_are_read(name: str, world: Any):
    one, collector = made(name, world)
    for _ in range(2):
        window = window_of(collector)
        reward = one.reward(window)
        metrics = one.update(window)
    assert reward.isfinite().all()
    assert float(reward.max()) > 0
    assert all(abs(value) < float("inf") for value in metrics.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalise", [True, False])
def test_a_signal_goes_on_where_its_state_was_taken(name: str, normalise: bool):
    one, collector = made(name, Everything(), normalise=normalise)
    for _ in range(2):
        window = window_of(collector)
        one.reward(window)
        one.update(window)
    other, _ = made(name, Everything(), normalise=normalise)
    other.load_state_dict(
        tree_map(torch.clone, {k: v for k, v in one.state_dict().items() if k != "updates"}) | {"updates": 2}
    )
    for _ in range(2):
        window = window_of(collector)
        assert torch.equal(one.reward(window), other.reward(window))
        assert one.update(window) == other.update(window)
    fresh, _ = made(name, Everything(), normalise=normalise)
    assert not torch.equal(one.reward(window), fresh.reward(window))
    leaves = [
        x for state in (one.state_dict(), other.state_dict()) for x in tree_leaves(state) if isinstance(x, torch.Tensor)
    ]
    half = len(leaves) // 2
    assert all(torch.equal(a, b) for a, b in zip(leaves[:half], leaves[half:], strict=True))
