"""PPO with its critic trained first: the settings of the 2020 trainer, to the step."""

import copy

import pytest
import torch

from algos.worlds import Everything, Probe, env_of
from coterie.algos import onpolicy
from coterie.algos.ppo import PPO, PPOConfig
from coterie.collect import Collector
from coterie.config import resolve
from coterie.errors import UserError
from coterie.math.returns import lambda_return
from coterie.math.schedules import decayed
from coterie.types import tree_leaves

CPU = torch.device("cpu")
PLAIN = {"normalise_value": False, "normalise_advantage": False, "value_clip_eps": None, "huber_delta": None}


def show_age(x, age):
    return age.view(-1, 1, 1)


def pay_choice(x, age, discrete, continuous):
    return discrete.float()


def episodes(length=4):
    """An agent that sees its age and is paid 1 for one of its choices; the task ends after `length` steps."""
    return Probe(show_age, pay_choice, length=length)


def learner(world, copies=16, **settings):
    """A learner of the world's only team whose critic goes first, and the collector that feeds it."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    quick = {"hidden": (16, 16), "horizon": 10, "sequence": 5, "epochs": 1, "critic_chunks": 2, "gamma": 0.9}
    algorithm = PPO(team, PPOConfig(**PLAIN | quick | settings), copies, None, 0, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def weights(algorithm):
    return [x.clone() for x in tree_leaves([algorithm.policy.module.state_dict(), algorithm.critic.state_dict()])]


def steps(algorithm):
    """How many the optimisers of policy and critic have made."""
    return [int(algorithm.state_dict()["optimiser"][name]["step"]) for name in ("policy", "value")]


def spied(monkeypatch, owner, name):
    """Arguments and results of every call from now on."""
    seen, original = [], getattr(owner, name)

    def spy(*args):
        found = original(*args)
        seen.append((args, found))
        return found

    monkeypatch.setattr(owner, name, spy)
    return seen


def critic_calls(algorithm):
    """Observations read and values given by the critic in every call from now on that takes a gradient."""
    calls = []

    def note(module, args, out):
        if out[0].requires_grad:
            calls.append((args[0]["agent"], out[0].detach().clone()))

    algorithm.critic.register_forward_hook(note)
    return calls


# ------------------------------------------------------------------------------------------------------------ stretches


@pytest.mark.parametrize(
    ("chunks", "ages"), [(1, [[0, 1, 2, 3, 4]]), (2, [[2, 3, 4], [0, 1]]), (99, [[4], [3], [2], [1], [0]])]
)
def test_the_critic_goes_backwards_a_step_a_stretch_and_then_the_policy_makes_one(chunks, ages):
    algorithm, collector = learner(episodes(), critic_chunks=chunks, minibatches=3, batch_sequences=7)
    calls = critic_calls(algorithm)
    algorithm.update(window_of(algorithm, collector), 0.0)
    assert [obs[:, 0, 0, 0].tolist() for obs, _ in calls] == ages * 3
    assert {obs.shape[1] for obs, _ in calls} == {7}
    assert steps(algorithm) == [3, 3 * len(ages)]


def test_an_episode_of_50_steps_and_its_closing_row_are_cut_into_ten_stretches_of_five_steps():
    found = []

    def learn(time):
        found.append([*range(51)][time])
        return torch.zeros(len(found[-1])), torch.zeros(1)

    onpolicy.backwards(51, 10, learn)
    assert [rows[0] for rows in found] == [45, 40, 35, 30, 25, 20, 15, 10, 5, 0]
    assert [len([row for row in rows if row < 50]) for rows in found] == [5] * 10


def test_what_stands_in_closing_rows_changes_no_weight():
    """The control: what stands in others does."""
    found = []
    for place, noted in (("closing", 0.0), ("closing", 1e6), ("acted", 0.1)):
        algorithm, collector = learner(episodes())
        window = window_of(algorithm, collector)
        closing = ~window.acted[:-1]
        assert closing.sum() == 16 * 2
        window.record["log_prob"][closing if place == "closing" else ~closing] -= noted
        algorithm.update(window, 0.0)
        found.append(torch.cat([x.flatten() for x in weights(algorithm)]))
    plain, spoilt, moved = found
    assert torch.equal(plain, spoilt)
    assert not torch.equal(plain, moved)


def test_gains_are_targets_less_values_from_before_each_step(monkeypatch):
    algorithm, collector = learner(episodes(), critic_chunks=5, lr=0.01)
    losses, calls = spied(monkeypatch, algorithm, "_policy_loss"), critic_calls(algorithm)
    targets = spied(monkeypatch, algorithm, "_targets")
    algorithm.update(window_of(algorithm, collector), 0.0)
    ((batch, _, _), _), = losses  # fmt: skip
    ((_, (judged, _)),) = targets
    before = torch.cat([value for _, value in calls[::-1]])
    gain = torch.where(batch.live, (judged.target - before)[..., 0], 0.0)
    assert torch.equal(batch.advantage, gain)
    with torch.no_grad():
        after, _ = algorithm.critic(batch.obs, None, None, {})
    # The controls: values after the steps are others, and so are those from before all of them.
    assert not torch.allclose(before, after, atol=1e-3)
    assert not torch.allclose(before[:-1], judged.value[:-1], atol=1e-4)
    assert torch.equal(before[-1], judged.value[-1])


# -------------------------------------------------------------------------------------------------------------- targets


def test_targets_are_lambda_returns_and_an_end_is_worth_nothing():
    algorithm, collector = learner(episodes(), gae_lambda=0.8)
    window = onpolicy.cut(window_of(algorithm, collector), 5, {})
    with torch.no_grad():
        batch, _ = algorithm._targets(window)
        value, _ = algorithm.critic(window.obs, None, None, {})
    end, stop = onpolicy.ends(window, False, False)
    wanted = lambda_return(window.reward, value[1:, ..., 0], end, stop, 0.9, 0.8)
    torch.testing.assert_close(batch.target[:4, ..., 0], wanted[:4])
    torch.testing.assert_close(batch.target[3, ..., 0], window.reward[3])


@pytest.mark.parametrize("critic_chunks", [1, None])
def test_targets_are_computed_anew_for_every_part(monkeypatch, critic_chunks):
    """From the critic as it is then; the control is PPO's own update, which computes them once a window."""
    algorithm, collector = learner(episodes(), critic_chunks=critic_chunks, minibatches=2, epochs=2, lr=0.01)
    targets, calls = spied(monkeypatch, algorithm, "_targets"), critic_calls(algorithm)
    algorithm.update(window_of(algorithm, collector), 0.0)
    assert len(calls) == 4
    assert len(targets) == (4 if critic_chunks else 1)
    if critic_chunks:
        first, *_, last = [batch for _, (batch, _) in targets]
        for (_, now), (_, (batch, _)) in zip(calls, targets, strict=True):
            assert torch.equal(batch.value, now)
        assert (first.target[:3].mean() - last.target[:3].mean()).abs() > 0.01


def test_a_part_is_of_distinct_episodes_drawn_anew():
    drawn = onpolicy.deal(64, 25, 10, torch.Generator().manual_seed(0))
    assert [len(set(part.tolist())) for part in drawn] == [10] * 25
    assert len({tuple(part.tolist()) for part in drawn}) == 25
    assert len(set(torch.cat(drawn).tolist())) > 60
    dealt = onpolicy.deal(64, 4, None, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(dealt).tolist()) == list(range(64))


def test_every_part_holds_whole_episodes():
    algorithm, collector = learner(episodes(), minibatches=25, batch_sequences=10)
    calls = critic_calls(algorithm)
    algorithm.update(window_of(algorithm, collector), 0.0)
    assert len(calls) == 2 * 25
    for (late, _), (early, _) in zip(calls[::2], calls[1::2], strict=True):
        ages = torch.cat([early, late])[..., 0, 0]
        assert torch.equal(ages, torch.arange(5.0).unsqueeze(-1).expand(5, 10))


# -------------------------------------------------------------------------------------------------------------- entropy


def test_the_entropy_bonus_is_multiplied_after_every_update_down_to_its_floor():
    assert [decayed(0.1, 0.9, 0.001, k) for k in (0, 1, 2, 10)] == pytest.approx([0.1, 0.09, 0.081, 0.034867844])
    assert decayed(0.1, 0.9, 0.001, 43) == pytest.approx(0.0010775264, abs=1e-9)
    assert decayed(0.1, 0.9, 0.001, 44) == 0.001
    algorithm, collector = learner(episodes(), entropy_coef=0.1, entropy_decay=0.9, entropy_end=0.65)
    window = window_of(algorithm, collector)
    found = [algorithm.update(window, 0.7)["policy/entropy_coef"] for _ in range(6)]
    assert found == pytest.approx([0.1, 0.09, 0.081, 0.0729, 0.06561, 0.065])
    algorithm, collector = learner(episodes(), entropy_coef=0.1, entropy_schedule="linear", entropy_end=0.5)
    assert algorithm.update(window, 0.5)["policy/entropy_coef"] == pytest.approx(0.075)  # by progress, as ever


# ------------------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize("kind", Everything.KINDS)
@pytest.mark.parametrize("critic", ["own", "joint_state"])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(kind, critic):
    """And what stands in dead places, NaN or a million, changes none of them."""
    settings = {"critic": critic, "minibatches": 3, "batch_sequences": 10, "entropy_coef": 0.1, "entropy_decay": 0.9}
    settings |= {"normalise_value": True, "normalise_advantage": True, "normalise_obs": True}
    algorithm, collector = learner(Everything(kind), **settings)
    other, _ = learner(Everything(kind), **settings)
    rich, wealth = learner(Everything(kind, 1e6), **settings)
    for update in range(4):
        if update == 2:
            other.load_state_dict(copy.deepcopy(algorithm.state_dict()))
        window = window_of(algorithm, collector)
        assert not window.alive.all()
        first = algorithm.update(window, 0.0)
        assert all(abs(value) < 1e9 for value in first.values())
        assert rich.update(window_of(rich, wealth), 0.0) == first
        if update > 1:
            assert other.update(window, 0.0) == first
    for one, another, third in zip(*map(weights, (algorithm, other, rich)), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, another)
        assert torch.equal(one, third)
    for one, another in zip(tree_leaves(algorithm.state_dict()), tree_leaves(other.state_dict()), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(another))
    assert other.state_dict()["updates"] == 4


def test_the_ratio_is_one_in_the_first_part_and_a_divergence_stops_the_passes():
    algorithm, collector = learner(Everything("hybrid"), critic="joint")
    metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/clip_fraction"] == 0
    algorithm, collector = learner(episodes(), epochs=50, target_kl=0.01, lr=0.02)
    assert 1 < algorithm.update(window_of(algorithm, collector), 0.0)["policy/epochs"] < 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic_chunks": None, "batch_sequences": 10}, "algo.batch_sequences=10 goes with algo.critic_chunks"),
        ({"memory": "gru"}, "algo.memory=gru does not go with algo.critic_chunks=2"),
        ({"batch_sequences": 33}, "algo.batch_sequences=33 is more than a window's 32 sequences"),
        ({"minibatches": 33}, "algo.minibatches=33 is more than a window's 32 sequences"),
        ({"sequence": 4}, "algo.sequence=4 does not divide the horizon of 10 rows"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        learner(episodes(), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("critic_first", [True, False])
def test_probe_action_that_fits_the_observation_is_chosen(critic_first):
    """Paid is who chooses what it sees; the control's gains are of another row."""
    pay = lambda x, age, d, c: (d[:, :1] == x.view(-1, 1)).float() * 2 - 1  # noqa: E731
    world = Probe(lambda x, age: x.view(-1, 1, 1), pay, length=4)
    algorithm, collector = learner(
        world, 32, minibatches=8, batch_sequences=20, lr=0.01, critic_chunks=2, entropy_coef=0.05, entropy_decay=0.9
    )
    if not critic_first:
        whole = algorithm._policy_loss
        algorithm._policy_loss = lambda batch, *rest: whole(  # pyright: ignore[reportAttributeAccessIssue]
            type(batch)(**vars(batch) | {"advantage": batch.advantage.roll(1, 1)}), *rest
        )
    for _ in range(15):
        algorithm.update(window_of(algorithm, collector), 0.0)
    window = window_of(algorithm, collector)
    earned = window.reward[window.acted[:-1]].mean().item()
    assert earned > 0.9 if critic_first else earned < 0.5


# ------------------------------------------------------------------------------------------------------------- presets

ORIGINAL = {
    "critic": "joint", "share": "none", "team_reward": True, "memory": "none", "normalise_obs": False,
    "horizon": 4 * 51, "sequence": 51, "epochs": 1, "minibatches": 25, "batch_sequences": 10, "critic_chunks": 10,
    "hidden": (256, 256), "critic_hidden": (256, 512, 512), "activation": "relu", "layer_norm": False,
    "lr": 1e-4, "critic_lr": None, "lr_schedule": "constant", "weight_decay": 1e-6, "adam_eps": 1e-8,
    "max_grad_norm": 0.5, "gamma": 0.998, "gae_lambda": 0.95, "clip_eps": 0.1, "target_kl": None,
    "entropy_coef": 0.1, "entropy_decay": 0.9, "entropy_end": 0.01, "value_coef": 2.0, **PLAIN,
}  # fmt: skip
BEST = {"critic_chunks": 1, "lr": 3e-4, "hidden": (256, 512), "critic_hidden": (256, 1024, 1024)}


@pytest.mark.parametrize(("name", "wanted"), [("original", ORIGINAL), ("original_best", ORIGINAL | BEST)])
def test_a_preset_is_the_trainers_settings(name, wanted):
    config = resolve([f"algo=mappo/{name}"]).config
    found = config.algo.params
    assert {key: getattr(found, key) for key in wanted} == wanted
    assert (config.copies, config.env.name) == (16, "particle/simple_spread")
    env = config.env.params
    assert (env.variant, env.episode_limit, env.limit_ends) == ("openai", 50, True)
    assert config.copies * found.horizon / 51 == 64


def test_the_presets_draw_their_weights_from_xaviers_normal_distribution():
    """A uniform first policy, as orthogonal weights with their small last layer give, learned far more slowly there."""
    algo = resolve(["algo=mappo/original", "env=particle/simple_spread"]).config.algo.params.model_dump()
    algorithm, _ = learner(episodes(), init=algo["init"])
    usual, _ = learner(episodes())
    for name in ("policy", "critic"):
        drawn, orthogonal = (x.policy.net if name == "policy" else x.critic for x in (algorithm, usual))
        head = [p for p in drawn.parameters() if p.ndim == 2][-1]
        other = [p for p in orthogonal.parameters() if p.ndim == 2][-1]
        torch.testing.assert_close(head.std(), torch.tensor((2 / sum(head.shape)) ** 0.5), rtol=0.5, atol=0)
        assert (other.std() < 0.01) == (name == "policy")
