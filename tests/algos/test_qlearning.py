"""Q-learning: exact answers of tiny games, probes with their negative controls, and what needs no training."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algos.worlds import Everything, Probe, env_of
from coterie.algos.qlearning import QLearning, QLearningConfig
from coterie.collect import Collector
from coterie.envs.make import make
from coterie.errors import NonFiniteError, UserError
from coterie.nets.teamvalue import agents_best, agents_done
from coterie.types import Action, tree_leaves, tree_map

CPU = torch.device("cpu")
MIXERS = ("none", "sum", "monotonic", "duplex")
CENTRAL = {"mixer": "monotonic", "weighting": "central"}


def learner(env, **settings):
    """A learner of the environment's only team, and the collector that feeds it."""
    (team,) = env.spec.default_teams()
    small = {"hidden": (16,), "memory_size": 8, "horizon": 12, "learning_starts": 0, "batch": 8, "target_every": 5}
    algorithm = QLearning(team, QLearningConfig(**small | settings), env.copies, None, 0, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def trained(env, updates, **settings):
    """A learner after so many windows."""
    quick = {"lr": 1e-2, "gamma": 0.9, "target_every": 20, "batch": 64, "epsilon_steps": 2000, "updates": 4}
    algorithm, collector = learner(env, **quick | settings)
    for _ in range(updates):
        algorithm.update(window_of(algorithm, collector), 0.0)
    return algorithm, collector


def played(algorithm, env, steps=24):
    """Mean reward a step, groups' added, of the greedy policy."""
    collector = Collector(env, {env.spec.default_teams()[0].name: algorithm.policy}, seed=1)
    epsilon, algorithm.policy.epsilon = algorithm.policy.epsilon, 0.0
    (window,) = collector.advance(steps)[0].values()
    algorithm.policy.epsilon = epsilon
    total = window.reward.sum(-1) + window.group_reward.sum(-1)
    return total[window.acted[:-1]].mean().item()


def q_of(algorithm, window, **rows):
    """Q of the only block [T + 1, B, n, A] in a window without memory."""
    with torch.no_grad():
        (q,) = algorithm._unrolled(algorithm.value, window, {}).values()
    return q


# -------------------------------------------------------------------------------------------------------- exact games


def table(algorithm, env):
    """Q_tot of every joint choice of two agents in a one-shot game, a square."""
    row, choices = env.reset(), env.spec.roles[0].action.choices[0]
    with torch.no_grad():
        q, _ = algorithm.value(algorithm.policy.scale(row.obs), None, {}, None)
        (block,) = algorithm.policy.blocks
        values = []
        for pair in itertools.product(range(choices), repeat=2):
            picks = {block.name: torch.tensor(pair).view(1, 2, 1).expand(env.copies, 2, 1)}
            values.append(
                algorithm.value.worth(q, picks, {block.name: None}, row.alive, row.obs, row.state["global"])[0]
            )
    return torch.stack(values).view(choices, choices)


def game(name, updates, **settings):
    """A learner of a matrix game from uniform data, the parameters apart, and its table."""
    env = make(f"matrix/{name}", {"episode_limit": 1}, 64, 0, CPU, with_state=True)
    uniform = {"epsilon": 1.0, "epsilon_end": 1.0, "epsilon_schedule": "constant", "share": "none", "gamma": 0.0}
    algorithm, _ = trained(
        env, updates, **uniform | {"horizon": 8, "batch": 256, "lr": 5e-3, "hidden": (32,)} | settings
    )
    return table(algorithm, env)


def test_vdn_fits_climbing_by_least_squares():
    """Rows' means plus columns' means less the mean; greedy (2, 2), which pays 5."""
    fit = game("climbing", 60, mixer="sum")
    pay = torch.tensor([[11.0, -30, 0], [-30, 7, 0], [0, 6, 5]])
    exact = pay.mean(1, keepdim=True) + pay.mean(0, keepdim=True) - pay.mean()
    assert torch.allclose(fit, exact, atol=1.0)
    assert divmod(int(fit.argmax()), 3) == (2, 2)


def test_vdn_and_qmix_fit_the_counterexample_as_well_as_they_can():
    pay = torch.tensor([[8.0, -12, -12], [-12, 0, 0], [-12, 0, 0]])
    fit = game("monotonic", 60, mixer="sum")
    assert fit[0, 0].item() == pytest.approx(-6.222, abs=0.8)
    assert fit[0, 1].item() == pytest.approx(-4.889, abs=0.8)
    assert fit[1, 1].item() == pytest.approx(-3.556, abs=0.8)
    error = (game("monotonic", 120, mixer="monotonic") - pay).square().sum().item()
    assert 280 < error < 335


def test_weights_let_qmix_find_what_it_cannot_fit():
    weighted = game("monotonic", 200, mixer="monotonic", weighting="optimistic", weight_rest=0.05)
    assert int(weighted.argmax()) == 0
    assert int(game("monotonic", 120, mixer="monotonic").argmax()) != 0  # the control: without the weights


@pytest.mark.parametrize(("mixer", "pays"), [("monotonic", 8), ("duplex", 8), ("sum", 7), ("none", 7)])
def test_the_two_step_game_separates_mixers(mixer, pays):
    env = make("matrix/two_step", {}, 64, 0, CPU, with_state=True)
    uniform = {"epsilon": 1.0, "epsilon_end": 1.0, "epsilon_schedule": "constant", "share": "none", "gamma": 0.99}
    algorithm, _ = trained(
        env, 150, mixer=mixer, horizon=9, batch=256, lr=5e-3, hidden=(32,), target_every=50, **uniform
    )
    assert played(algorithm, env) * 2 == pytest.approx(pays)


# ------------------------------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize("limit", [True, False])
def test_an_endless_reward_of_one_is_worth_ten_under_a_time_limit(limit):
    """The control ends there, and is worth less."""
    world = Probe(
        lambda x, age: torch.ones(len(x), 1, 1), lambda x, age, d, c: torch.ones(len(x), 1), length=5, limit=limit
    )
    algorithm, collector = trained(env_of(world, 16), 150)
    found = q_of(algorithm, window_of(algorithm, collector)).mean().item()
    assert found == pytest.approx(10, abs=0.5) if limit else found < 4.5


@pytest.mark.parametrize("masked", [True, False])
def test_a_masked_choice_is_neither_taken_nor_bootstrapped_from(masked):
    """The best choice pays 1 and is not to be had; the rest pays 0.5: worth 5 without it, 10 with it."""
    mask = torch.tensor([False, True, True]) if masked else None
    world = Probe(
        lambda x, age: torch.ones(len(x), 1, 1), lambda x, age, d, c: torch.where(d == 0, 1.0, 0.5),
        actions=spaces.Discrete(3), mask=mask, length=6, limit=True,
    )  # fmt: skip
    algorithm, collector = trained(env_of(world, 16), 150)
    window = window_of(algorithm, collector)
    best = q_of(algorithm, window)[..., 1:].amax().item() if masked else q_of(algorithm, window).amax().item()
    assert best == pytest.approx(5 if masked else 10, abs=0.5)
    assert (window.action["agent"].discrete[window.acted[:-1]] == 0).any() != masked


@pytest.mark.parametrize(
    ("memory", "start", "learns"),
    [
        ("gru", {"sequence_start": "episode"}, True),
        ("lstm", {"sequence_start": "window"}, True),
        ("none", {}, False),
    ],
)
def test_a_cue_is_remembered_by_networks_with_memory_alone(memory, start, learns):
    def see(x, age):
        return torch.stack([torch.where(age == 0, x, 0.5), age / 3], -1).view(-1, 1, 2)

    def pay(x, age, d, c):
        return torch.where((age == 2).unsqueeze(-1), (d == x.unsqueeze(-1).long()).float(), 0.0)

    env = env_of(Probe(see, pay, size=2, length=3), 32)
    algorithm, _ = trained(
        env, 120, memory=memory, memory_size=16, **start, horizon=8, hidden=(16,), batch=64, lr=5e-3,
        epsilon_steps=15_000,
    )  # fmt: skip
    assert (played(algorithm, env) * 3 > 0.95) == learns


@pytest.mark.parametrize("agent_id", [True, False])
def test_agents_that_see_the_same_differ_by_their_id(agent_id):
    """Agent 0 is paid for choice 0, agent 1 for choice 1; the control has no id."""
    env = env_of(
        Probe(lambda x, age: torch.ones(len(x), 1, 1), lambda x, age, d, c: (d == torch.arange(2)).float(), n=2), 16
    )
    algorithm, _ = trained(env, 80, mixer="sum", agent_id=agent_id)
    assert (played(algorithm, env) > 1.9) == agent_id


@pytest.mark.parametrize("mixer", ["sum", "none"])
def test_vdn_is_exact_where_the_team_is_paid_a_sum(mixer):
    """The control learns each agent's value alone, of the half that it is paid."""

    def pay(x, age, d, c):
        return (2 * d[:, :1] + 3 * d[:, 1:]).float() / 2  # each its half

    env = env_of(Probe(lambda x, age: torch.ones(len(x), 1, 1), pay, n=2), 16)
    algorithm, collector = trained(env, 100, mixer=mixer, share="none", gamma=0.0)
    q = q_of(algorithm, window_of(algorithm, collector))[0, 0]
    gaps = (q[:, 1] - q[:, 0]).tolist()
    assert (gaps == pytest.approx([2, 3], abs=0.1)) == (mixer == "sum")
    assert q.amax(-1).sum().item() == pytest.approx(5, abs=0.1)


def test_a_sum_of_components_is_what_several_choices_are_worth():
    def pay(x, age, d, c):
        return (d == 1).float()  # the first component alone is shown to the world's payment

    env = env_of(Probe(lambda x, age: torch.ones(len(x), 1, 1), pay, actions=spaces.MultiDiscrete([3, 2])), 16)
    algorithm, collector = trained(env, 100, gamma=0.0)
    q = q_of(algorithm, window_of(algorithm, collector))[0, 0, 0]
    best = q[:3].max() + q[3:].max()
    assert best.item() == pytest.approx(1, abs=0.1)
    assert int(q[:3].argmax()) == 1


# --------------------------------------------------------------------------------------------------------- invariants


def test_exploration_is_decided_for_every_row_and_agent():
    """One draw for all would make copies and agents explore together."""
    env = env_of(Everything("discrete", dead=0.0), 64)
    algorithm, _ = learner(env)
    algorithm.policy.epsilon = 0.5
    (noise,) = algorithm.policy.noise(1, 64, torch.Generator().manual_seed(0))
    explores = noise[..., 0] < 0.5
    assert 0.35 < explores.float().mean() < 0.65
    assert explores.any(1).ne(explores.all(1)).any()
    row = env.reset()
    greedy, _, _ = algorithm.policy.act(row, {}, noise, "greedy")
    mixed, _, _ = algorithm.policy.act(row, {}, noise, "explore")
    same = (greedy["guard"].discrete == mixed["guard"].discrete)[..., 0]
    assert same[~explores[:, :2]].all()
    assert not same[explores[:, :2]].all()


def test_epsilon_falls_with_the_steps_of_the_environment_and_stays():
    algorithm, collector = learner(env_of(Everything(), 16), epsilon_steps=500, epsilon_end=0.1, batch=10_000)
    seen, steps = [], 0
    for _ in range(5):
        window = window_of(algorithm, collector)
        steps += int(window.acted[:-1].sum())
        algorithm.update(window, 0.0)
        seen.append(algorithm.policy.epsilon)
        assert seen[-1] == pytest.approx(1 - 0.9 * min(1, steps / 500))
    assert seen[-1] == pytest.approx(0.1)
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("every", [3, None])
def test_the_target_network_is_a_copy_or_a_mixture_of_the_online_one(every):
    algorithm, collector = learner(env_of(Everything(), 16), target_every=every, tau=0.25, mixer="monotonic", lr=1e-2)
    start = [x.clone() for x in tree_leaves(dict(algorithm.target.module.state_dict()))]
    expected = [x.clone() for x in start]
    for k in range(1, 7):
        algorithm.update(window_of(algorithm, collector), 0.0)
        online = tree_leaves(dict(algorithm.module.state_dict()))
        if every is None:
            expected = [e + 0.25 * (o - e) for e, o in zip(expected, online, strict=True)]
        elif k % every == 0:
            expected = [o.clone() for o in online]
        target = tree_leaves(dict(algorithm.target.module.state_dict()))
        for e, t in zip(expected, target, strict=True):
            assert torch.allclose(e, t, atol=1e-6)
    assert not all(torch.equal(s, t) for s, t in zip(start, target, strict=True))
    assert not all(torch.equal(o, t) for o, t in zip(online, target, strict=True)) or every == 3


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_what_stands_in_dead_places_changes_no_weight(mixer, memory):
    """NaN and a million there leave the same bits, and these are finite."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            env_of(Everything("discrete", dead), 16), mixer=mixer, memory=memory, normalise_obs=True
        )
        for _ in range(3):
            window = window_of(algorithm, collector)
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        weights.append(tree_leaves(dict(algorithm.module.state_dict())))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("where", ["dead", "live"])
@pytest.mark.parametrize("settings", [{"mixer": mixer} for mixer in MIXERS] + [CENTRAL])
def test_what_the_dead_did_changes_no_weight(settings, where):
    found = []
    for changed in (False, True):
        algorithm, collector = learner(env_of(Everything("discrete", 0.0), 16), **settings)
        for _ in range(3):
            window = window_of(algorithm, collector)
            places = ~window.alive[:-1] if where == "dead" else window.alive[:-1] & window.acted[:-1, :, None]
            assert places.any()
            if changed:
                done, at = {}, 0
                for role in algorithm.team.roles:
                    here = places[..., at : (at := at + role.n), None]
                    own = window.action[role.name].discrete
                    done[role.name] = Action(torch.where(here, (own + 1) % role.action.choices[0], own))
                window = replace(window, action=done)
            algorithm.update(window, 0.0)
        found.append(tree_leaves(dict(algorithm.module.state_dict())))
    same = all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert same == (where == "dead")


@pytest.mark.parametrize("mixer", ["sum", "monotonic", "duplex"])
@pytest.mark.parametrize("limit", [True, False])
def test_a_limit_is_no_end_for_a_team_whose_agents_can_die(mixer, limit):
    """What the mixer is told of the row behind a limit: its agents live and count. An end, the control, is worth what
    it pays.
    """
    world = Probe(
        lambda x, age: torch.ones(len(x), 2, 1), lambda x, age, d, c: torch.ones(len(x), 2), n=2, length=3, limit=limit
    )
    world.spec = replace(world.spec, mortal=True)
    algorithm, collector = learner(env_of(world, 4), mixer=mixer, memory="gru")
    seen = []
    algorithm._far["value"].mixer.register_forward_pre_hook(lambda module, args: seen.append(args[4]))
    window = window_of(algorithm, collector)
    algorithm._batch(window)
    alive = seen[0]
    behind = window.episode_truncated | window.episode_terminated
    assert behind.any()
    assert alive[behind].all()
    assert bool((algorithm._batch(window).target[behind] == window.reward.sum(-1)[behind]).all()) != limit
    assert alive[~behind & window.acted[:-1]].all()


def test_importance_weighs_all_that_is_learned():
    algorithm, collector = learner(env_of(Everything("discrete", 0.0), 16), **CENTRAL)
    algorithm.replay.add(window_of(algorithm, collector))
    sample = algorithm.replay.sample
    for weight in (1.0, 0.0):
        algorithm.replay.sample = lambda n, w=weight: replace(
            drawn := sample(n), weight=w * torch.ones_like(drawn.weight)
        )
        assert (algorithm._learn(1e-3)[0] == 0) == (weight == 0)


@pytest.mark.parametrize("which", ["closing", "acted"])
def test_closing_rows_are_not_learned_from(which):
    """A reward of a million there changes nothing; the control puts it where rows were acted on."""
    losses = []
    for bonus in (0.0, 1e6):
        algorithm, collector = learner(env_of(Everything(dead=0.0), 16), memory="gru", mixer="sum")
        window = window_of(algorithm, collector)
        acted = window.acted[:-1]
        window.reward[~acted if which == "closing" else acted] += bonus
        losses.append(algorithm.update(window, 0.0)["loss/td"])
    assert (losses[0] == losses[1]) == (which == "closing")


def test_rewards_are_measured_once_as_they_come():
    """A learner that draws each sequence many times has the same statistics as one that draws few."""
    moments = []
    for updates in (1, 7):
        algorithm, collector = learner(
            env_of(Everything(dead=0.0), 16), reward_scale="standard", mixer="sum", updates=updates
        )
        collector.env.reset(3)
        window = window_of(algorithm, collector)
        algorithm.update(window, 0.0)
        live = (window.alive[:-1] & window.acted[:-1, :, None]).any(-1)
        total = (window.reward.sum(-1) + window.group_reward.sum(-1))[live].double()
        moments.append(algorithm._reward_moments)
        assert moments[-1]["count"].item() == live.sum().item()
        assert moments[-1]["mean"].item() == pytest.approx(total.mean().item())
    assert moments[0]["mean"] == moments[1]["mean"]


def test_burn_in_gives_the_memory_that_a_whole_pass_has():
    """Q of the rows after it are those of a pass over all rows."""
    settings = {"memory": "gru", "last_action": True, "horizon": 12}
    weighted = {"mixer": "monotonic", "weighting": "central"}
    algorithm, collector = learner(env_of(Everything(), 16), burn_in=4, **weighted, **settings)
    window = [window_of(algorithm, collector) for _ in range(2)][1]
    rest, online, far = algorithm._warmed(window)
    stored, empty = dict(window.carry), algorithm.policy.start(window.copies)
    begins = {"value": stored, "central": empty | {"last": stored["last"]}}  # what acted is not what judges
    for networks, carries in ((algorithm.module, online), (algorithm._far, far)):
        for part, begin in begins.items():
            whole = algorithm._unrolled(networks[part], window, begin)
            for name, q in algorithm._unrolled(networks[part], rest, carries[part]).items():
                assert torch.allclose(q, whole[name][4:], atol=1e-6)
            cold = algorithm._unrolled(networks[part], rest, empty)
            assert not torch.allclose(cold["guard"], whole["guard"][4:], atol=1e-4)  # the control: an empty memory


def test_acting_and_learning_see_the_same_q():
    """The Q that the acting network chose by is the one that the unrolled network gives, memory and last actions in."""
    algorithm, collector = learner(env_of(Everything("multi_discrete", dead=0.0), 16), memory="lstm", last_action=True)
    algorithm.policy.epsilon = 0.0
    window_of(algorithm, collector)
    window = window_of(algorithm, collector)  # the memory carried from window to window as well
    q = algorithm._unrolled(algorithm.value, window, dict(window.carry))
    masks = algorithm._masks(window)
    picks, done = agents_best(algorithm.policy.net, q, masks), agents_done(algorithm.policy.net, window.action)
    live = window.alive[:-1] & window.acted[:-1, :, None]
    assert (picks["guard"][:-1] == done["guard"])[live[..., :2]].all()
    assert (picks["scout"][:-1] == done["scout"])[live[..., 2:]].all()


KINDS = list(itertools.product(("discrete", "multi_discrete"), ("none", "gru", "lstm"), MIXERS))


@pytest.mark.parametrize(("kind", "memory", "mixer"), KINDS)
def test_resume_is_bit_identical(kind, memory, mixer):
    """Replay, priorities, targets, epsilon, statistics and generators included."""
    settings = {
        "memory": memory, "mixer": mixer, "priority_exponent": 0.6, "reward_scale": "spread", "normalise_obs": True,
        "last_action": memory != "none", "n_step": 3, "trace_decay": 0.8 if memory == "gru" else None,
    }  # fmt: skip
    env = env_of(Everything(kind), 8)
    algorithm, collector = learner(env, **settings)
    for _ in range(4):
        algorithm.update(window_of(algorithm, collector), 0.3)
    state = copy.deepcopy(algorithm.state_dict())
    windows = [tree_map(torch.clone, window_of(algorithm, collector)) for _ in range(3)]
    other, _ = learner(env_of(Everything(kind), 8), **settings)
    other.load_state_dict(state)
    for window in windows:
        assert algorithm.update(window, 0.5) == other.update(window, 0.5)
    for one, two in zip(
        tree_leaves(algorithm.state_dict()["module"]), tree_leaves(other.state_dict()["module"]), strict=True
    ):
        assert torch.equal(one, two)


# ------------------------------------------------------------------------------------------------------------- errors


def test_settings_that_do_not_fit_are_named():
    env = env_of(Everything(), 8)
    with pytest.raises(UserError, match=r"algo\.last_action=true .* algo\.memory=gru"):
        learner(env, last_action=True)
    with pytest.raises(UserError, match=r"algo\.weighting=central .* algo\.mixer=monotonic"):
        learner(env, weighting="central", mixer="sum")
    with pytest.raises(UserError, match=r"algo\.share=all"):
        learner(env, share="all")
    for name in ("epsilon", "epsilon_end"):
        with pytest.raises(UserError, match=rf"algo\.{name}=0 goes with no exponential schedule"):
            learner(env, epsilon_schedule="exponential", **{name: 0.0})
    with pytest.raises(UserError, match=r"algo\.team_reward=true changes nothing with algo\.mixer=sum"):
        learner(env, mixer="sum", team_reward=True)
    with pytest.raises(UserError, match=r"algo\.trace_decay=0\.5 changes nothing along one step"):
        learner(env, trace_decay=0.5)


@pytest.mark.parametrize(
    ("settings", "limit", "found", "said"),
    [
        ({"memory": "none"}, 12, "row", ""),
        ({}, 12, "episode", ""),
        ({}, 13, "window", ""),
        ({}, None, "window", ""),
        ({"sequence": 30}, 30, "episode", ""),
        ({"burn_in": 4}, 12, "window", ""),
        ({"sequence_start": "window"}, 12, "window", ""),
        ({"sequence_start": "episode"}, None, "episode", ""),
        ({"memory": "none", "burn_in": 2}, 12, "row", "algo.burn_in=2 changes nothing without a memory"),
        ({"memory": "none", "sequence": 2}, 12, "row", "algo.sequence=2 changes nothing without a memory"),
        ({"memory": "none", "sequence_start": "window"}, 12, "row", "algo.sequence_start=window changes nothing"),
        ({"sequence_start": "episode"}, 13, "episode", "nothing behind step 12 is learned from: give algo.sequence=13"),
        ({"sequence_start": "episode", "burn_in": 4}, 12, "episode", "the first 4 steps of every episode only warm"),
        (
            {"sequence": 6},
            13,
            "window",
            "only 6 rows of each are learned from: leave algo.sequence out",
        ),
    ],
)
def test_sequences_begin_where_every_row_is_learned_from_or_it_is_said_which_are_not(settings, limit, found, said):
    world = Everything()
    world.spec = replace(world.spec, episode_limit=limit)
    algorithm, collector = learner(env_of(world, 8), **{"memory": "gru", **settings})
    assert algorithm.replay._kind == found
    _, *notes = algorithm.notes
    assert [said in note for note in notes] == [True] * bool(said)
    for _ in range(4):
        algorithm.replay.add(window_of(algorithm, collector))
    assert algorithm._learn(1e-3).isfinite().all()


def test_continuous_actions_are_refused():
    (team,) = env_of(Everything("continuous"), 4).spec.default_teams()
    with pytest.raises(UserError, match="does not support the continuous actions"):
        QLearning.capabilities.require("qmix", team)


def test_a_value_that_is_not_a_number_is_named():
    algorithm, collector = learner(env_of(Everything(dead=0.0), 8))
    with torch.no_grad():
        next(algorithm.value.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="loss/td"):
        algorithm.update(window_of(algorithm, collector), 0.0)
