"""ICM and RND: rewards by their formulas, learning, masking, and resuming."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything, Probe, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.config.rewards import IcmConfig, RndConfig
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves, tree_map
from coterie.core.types import Rollout
from coterie.functional.intrinsic_rewards import squared_error
from coterie.policies.base import RandomPolicy
from coterie.rewards.rewarded import SIGNALS
from coterie.rewards.signal import RewardScale, observed_outcome
from coterie.training.collector import Collector
from preset_learners import ImageAndVector

CPU = torch.device("cpu")
CONFIGS: dict[str, Any] = {"icm": IcmConfig, "rnd": RndConfig}
NAMES = list(CONFIGS)
SMALL = {"hidden_sizes": (8,), "features": 4}


def made(name: str, world: Any, num_envs: int = 8, **settings: Any) -> tuple[Any, Collector]:
    """Returns a signal of the only team, and a collector with the random policy."""
    env = env_of(world, num_envs)
    (team,) = env.spec.default_teams()
    one = SIGNALS[name](
        CONFIGS[name](**SMALL | settings), AlgorithmContext(team=team, num_envs=num_envs, seed=0, device=CPU)
    )
    return one, Collector(env, {team.name: RandomPolicy(team, CPU)}, seed=0)


def rollout_of(collector: Collector, steps: int = 12) -> Rollout:
    (rollout,) = collector.advance(steps)[0].values()
    return rollout


def walk() -> Probe:
    """Shows a constant number and the age of the episode; every timestep looks different."""
    return Probe(
        lambda x, age: torch.stack((x, age), -1).unsqueeze(1), lambda x, age, d, c: torch.zeros(len(x), 1), size=2,
        length=5,
    )  # fmt: skip


class Echo(Probe):
    """Shows the last choice."""

    def __init__(self) -> None:
        super().__init__(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: torch.zeros(len(x), 1), length=50)

    def step(self, state: Any, action: Any, noise: Any) -> Any:
        state, outcome = super().step(state, action, noise)
        return state | {"x": action["agent"].discrete[:, 0, 0].float()}, outcome


@pytest.mark.parametrize("name", NAMES)
def test_rewards_are_zero_before_the_first_update_only(name: str):
    one, collector = made(name, walk())
    rollout = rollout_of(collector)
    assert (one.reward(rollout) == 0).all()
    one.update(rollout)
    assert (one.reward(rollout)[observed_outcome(rollout)] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_agents_that_did_not_act_or_observe_the_outcome_get_no_reward(name: str):
    one, collector = made(name, Everything())
    for _ in range(2):
        rollout = rollout_of(collector)
        reward = one.reward(rollout)
        one.update(rollout)
    assert not observed_outcome(rollout).all()
    assert (reward[~observed_outcome(rollout)] == 0).all()
    assert (reward[observed_outcome(rollout)] > 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_observations_of_dead_agents_have_no_effect(name: str):
    """Negative control: observations of living agents have an effect."""
    world = Everything(dead=0.0)
    one, collector = made(name, world)
    other, same = made(name, world)[0], made(name, world)[0]
    rollout = rollout_of(collector)
    dead = ~rollout.alive
    filled = {}
    for role, where in (("guard", dead[..., :2]), ("scout", dead[..., 2:])):
        filled[role] = torch.where(where.unsqueeze(-1), 1e6, rollout.obs[role])
    corrupted = replace(rollout, obs=filled)
    changed = replace(rollout, obs={role: x + 1.0 * torch.randn(x.shape) for role, x in rollout.obs.items()})
    results = []
    for signal_, lived in ((one, rollout), (other, corrupted), (same, changed)):
        signal_.reward(lived)
        metrics = signal_.update(lived)
        again = torch.where(observed_outcome(rollout), signal_.reward(lived), 0.0)
        results.append((metrics, again))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][0] != results[2][0]


def test_icms_reward_is_the_error_of_its_forward_model_and_at_most_one_when_weighted():
    one, collector = made("icm", walk(), weight=0.5, eta=3.0, normalize_obs=False)
    rollout = rollout_of(collector)
    one.reward(rollout)
    one.update(rollout)
    models, block = one.models, one.models.blocks[0]
    with torch.no_grad():
        features = models.encode(rollout.obs)["agent"]
        predicted = models.predict_features(block, features[:-1], rollout.action["agent"])
    error = torch.where(observed_outcome(rollout), squared_error(predicted, features[1:]), 0.0)
    torch.testing.assert_close(one.reward(rollout), (3.0 * error).clamp(max=2.0))
    with torch.no_grad():
        for parameter in models.forward_model.parameters():
            parameter += 5.0
    assert float(one.reward(rollout).max()) == 2.0


def test_beta_weights_icms_forward_loss_and_one_minus_beta_its_inverse_loss():
    for beta, unchanged, changed in ((1.0, "inverse_model", "forward_model"), (0.0, "forward_model", "inverse_model")):
        one, collector = made("icm", walk(), beta=beta)
        before = {name: [x.clone() for x in getattr(one.models, name).parameters()] for name in (unchanged, changed)}
        rollout = rollout_of(collector)
        one.reward(rollout)
        one.update(rollout)
        after = {name: list(getattr(one.models, name).parameters()) for name in before}
        assert all(map(torch.equal, before[unchanged], after[unchanged]))
        assert not any(map(torch.equal, before[changed], after[changed]))


@pytest.mark.slow
def test_icms_inverse_model_learns_only_actions_with_visible_outcomes():
    loss = {}
    for world in (Echo(), walk()):
        one, collector = made("icm", world, num_envs=32, lr=1e-2, beta=0.0)
        for _ in range(25):
            rollout = rollout_of(collector)
            one.reward(rollout)
            loss[type(world)] = one.update(rollout)["loss/icm_inverse"]
    assert loss[Echo] < 0.1
    assert loss[Probe] > 0.6  # ln 2 is the loss of guessing


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_new_observations_are_rewarded_more_than_known_ones(name: str):
    """RND for other observations, ICM for other outcomes."""
    one, collector = made(name, walk(), num_envs=16, lr=1e-2, normalize_obs=False)
    rollout = rollout_of(collector)
    for _ in range(60):
        old = one.reward(rollout)[observed_outcome(rollout)].mean()
        one.update(rollout)
    other = replace(rollout, obs=tree_map(lambda x: -2 * x.flip(0), rollout.obs))
    assert float(one.reward(other)[observed_outcome(rollout)].mean()) > 5 * float(old)


def test_rnds_target_never_changes_and_its_predictor_does():
    one, collector = made("rnd", walk())
    before = [[x.clone() for x in net.parameters()] for net in (one.target, one.predictor)]
    rollout = rollout_of(collector)
    one.reward(rollout)
    one.update(rollout)
    assert all(torch.equal(a, b) for a, b in zip(before[0], one.target.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before[1], one.predictor.parameters(), strict=True))


def test_rnd_rewards_the_next_observation():
    one, collector = made("rnd", walk())
    rollout = rollout_of(collector, steps=10)
    one.reward(rollout)
    one.update(rollout)
    reward = one.reward(rollout)
    begun = replace(rollout, obs={"agent": torch.cat([rollout.obs["agent"][:1] + 9.0, rollout.obs["agent"][1:]])})
    assert torch.equal(one.reward(begun), reward)
    last = replace(rollout, obs={"agent": torch.cat([rollout.obs["agent"][:-1], rollout.obs["agent"][-1:] + 9.0])})
    live = observed_outcome(rollout)[-1]
    assert (one.reward(last)[-1][live] != reward[-1][live]).any()


def test_observations_are_normalized_and_clipped():
    one, collector = made("rnd", walk())
    rollout = rollout_of(collector)
    one.reward(rollout)
    one.update(rollout)
    far = one.obs_normalizer({"agent": torch.full((1, 1, 2), 1e4)})["agent"]
    assert far.flatten().tolist() == [5.0, 5.0]
    other, _ = made("rnd", walk(), normalize_obs=False)
    other.reward(rollout)
    other.update(rollout)
    assert float(other.obs_normalizer({"agent": torch.full((1, 1, 2), 1e4)})["agent"].max()) == 1e4


@pytest.mark.parametrize(("name", "timesteps"), [("icm", slice(None, -1)), ("rnd", slice(1, None))])
def test_statistics_are_of_the_observations_that_a_signal_reads(name: str, timesteps: slice):
    """The present ones for ICM, the next ones for RND: their mean is normalized to zero."""
    one, collector = made(name, walk())
    rollout = rollout_of(collector)
    one.reward(rollout)
    one.update(rollout)
    mean = rollout.obs["agent"][timesteps][observed_outcome(rollout)].mean(0)
    torch.testing.assert_close(one.obs_normalizer({"agent": mean.view(1, 1, 2)})["agent"], torch.zeros(1, 1, 2))


def test_rewards_are_divided_by_the_standard_deviation_of_their_returns():
    scale = RewardScale(enabled=True, num_envs=1, num_agents=1, gamma=0.5, device=CPU)
    live = torch.ones(2, 1, 1, dtype=torch.bool)
    reward = torch.tensor([2.0, 5.0]).view(2, 1, 1)
    assert torch.equal(scale(reward), reward)  # no statistics yet
    scale.observe(reward, live)  # returns 2 and 6: standard deviation 2
    assert scale(reward).flatten().tolist() == [1.0, 2.5]
    scale.observe(torch.tensor([7.0, 0.0]).view(2, 1, 1), live & torch.tensor([True, False]).view(2, 1, 1))
    # the next return is 3 + 7 = 10, and masked entries are left out: 2, 6, 10
    assert float(scale(torch.ones(1, 1, 1))) == pytest.approx((32 / 3) ** -0.5)
    off = RewardScale(enabled=False, num_envs=1, num_agents=1, gamma=0.5, device=CPU)
    off.observe(reward, live)
    assert torch.equal(off(reward), reward)


@pytest.mark.parametrize("name", NAMES)
def test_rewards_are_scaled_by_returns_with_the_discount_of_the_signal(name: str):
    rewards = []
    for gamma in (0.0, 0.99, None):
        one, collector = made(name, walk(), gamma=gamma, normalize=True)
        rollout = rollout_of(collector)
        one.reward(rollout)
        one.update(rollout)
        rewards.append(one.reward(rollout))
    assert rewards[0].sum() > 1.1 * rewards[1].sum()  # smaller returns are divided by a smaller number
    assert torch.equal(rewards[1], rewards[2])


@pytest.mark.parametrize("name", NAMES)
def test_networks_are_shared_as_configured(name: str):
    one, _ = made(name, Everything())
    sets = [net for net in vars(one).values() if isinstance(net, torch.nn.Module)]
    names = {key for net in sets for key, _ in net.named_parameters()}
    assert {part for key in names for part in key.split(".") if part in {"guard", "scout"}} == {"guard", "scout"}
    single, _ = made(name, Everything(), share_params="none")
    shapes = [p.shape for net in vars(single).values() if isinstance(net, torch.nn.Module) for p in net.parameters()]
    assert any(shape[0] == 2 and len(shape) == 3 for shape in shapes)
    with pytest.raises(UserError, match=f"rewards.{name}.share_params=all needs equal spaces"):
        made(name, Everything(), share_params="all")


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("icm", ImageAndVector()),
        ("rnd", ImageAndVector()),
        ("icm", Everything("hybrid")),
        ("icm", Everything("multi_discrete")),
    ],
    ids=lambda x: x if isinstance(x, str) else x.spec.name,
)
def test_images_several_sensors_and_all_actions_are_supported(name: str, world: Any):
    one, collector = made(name, world)
    for _ in range(2):
        rollout = rollout_of(collector)
        reward = one.reward(rollout)
        metrics = one.update(rollout)
    assert reward.isfinite().all()
    assert float(reward.max()) > 0
    assert all(abs(value) < float("inf") for value in metrics.values())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "normalize"), [("icm", True), ("rnd", False), ("rnd", True)])
def test_a_signal_resumes_from_its_state(name: str, normalize: bool):
    one, collector = made(name, Everything(), normalize=normalize)
    for _ in range(2):
        rollout = rollout_of(collector)
        one.reward(rollout)
        one.update(rollout)
    other, _ = made(name, Everything(), normalize=normalize)
    other.load_state_dict(
        tree_map(torch.clone, {k: v for k, v in one.state_dict().items() if k != "updates"}) | {"updates": 2}
    )
    for _ in range(2):
        rollout = rollout_of(collector)
        assert torch.equal(one.reward(rollout), other.reward(rollout))
        assert one.update(rollout) == other.update(rollout)
    fresh, _ = made(name, Everything(), normalize=normalize)
    assert not torch.equal(one.reward(rollout), fresh.reward(rollout))
    leaves = [
        x for state in (one.state_dict(), other.state_dict()) for x in tree_leaves(state) if isinstance(x, torch.Tensor)
    ]
    half = len(leaves) // 2
    assert all(torch.equal(a, b) for a, b in zip(leaves[:half], leaves[half:], strict=True))
