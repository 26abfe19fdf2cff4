"""Every algorithm with all kinds of actions and observations, with and without recurrent networks."""

import copy
import itertools
from typing import get_args

import numpy as np
import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos import registry
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from coterie.core.tree import tree_leaves, tree_map
from coterie.envs.make import make
from coterie.training.collector import Collector
from learners import collect_rollout
from preset_learners import (
    CLASSES,
    LEARNERS,
    ImageAndVector,
    policy_tensors,
    preset_learner,
    supports_actions,
    supports_rnn,
)

CPU = torch.device("cpu")


MINIBATCHES = {"mappo/original": {"sequence_length": 4, "batch_size": 4, "num_minibatches": 2}}
"""Settings of variants whose minibatches are larger than short rollouts."""


def run(name, env, rnn, updates=2):
    """Returns the learner, its collector, the metrics of the last update, and the weights before and after."""
    algorithm = preset_learner(name, env, rnn, **MINIBATCHES.get(name, {}))
    collector = Collector(env, {env.spec.default_teams()[0].name: algorithm.behavior_policy}, seed=0)
    before = [x.clone() for x in policy_tensors(algorithm)]
    metrics = {}
    for k in range(updates):
        metrics = algorithm.update(collect_rollout(algorithm, collector), k / updates)
    return algorithm, collector, metrics, before, policy_tensors(algorithm)


def kind_of(name):
    """Returns the kind of actions with most parts that an algorithm supports beside the second role's choices."""
    kinds = [kind for kind in reversed(Everything.KINDS) if supports_actions(name, kind)]
    return kinds[0] if supports_actions(name, "discrete") else "discrete"


CASES = [
    (name, kind)
    for name, kind in itertools.product(CLASSES, Everything.KINDS)
    if kind != kind_of(name) and supports_actions(name, kind)
    if kind != "multi_discrete" or kind_of(name) != "hybrid"  # several parts, too
    if supports_actions(name, "discrete")  # the choices of the second role
]
"""Every class of learners with the other kinds of actions."""


def assert_learned(metrics, before, after):
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(x.isfinite().all() for x in after)
    assert undeclared(metrics) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_all_supported_action_spaces_are_learned_from(name, kind):
    """Two roles with different spaces, masks, deaths and group rewards; dead agents observe NaN. For recurrent networks
    see the last test.
    """
    _, _, *found = run(name, env_of(Everything(kind), 8), "none", updates=1)
    assert_learned(*found)


@pytest.mark.parametrize("kind", Everything.KINDS)
def test_other_action_spaces_are_refused(kind):
    env = env_of(Everything(kind), 1)
    for name in LEARNERS:
        if not (supports_actions(name, kind) and supports_actions(name, "discrete")):
            with pytest.raises(UserError, match=f"algo: {name} does not support"):
                preset_learner(name, env, "none")


@pytest.mark.parametrize(
    ("name", "world"),
    [
        *((name, "image_and_vector") for name in CLASSES),
        *((name, "image") for name in ("mappo", "qmix")),  # kept in rollouts and in replay
    ],
)
def test_images_and_dictionaries_are_learned_from(name, world):
    env = make("probe/image", {}, 4, 0, device=CPU) if world == "image" else env_of(ImageAndVector(), 4)
    rnn = "gru" if world == "image_and_vector" and supports_rnn(name, "gru") else "none"
    if not registry.algorithm(name).capabilities.images:
        with pytest.raises(UserError):
            preset_learner(name, env, rnn)
        return
    _, _, *found = run(name, env, rnn, updates=1)
    assert_learned(*found)


def moments(state):
    """Returns the first moments of Adam in a state, without those of temperatures, which are not clipped."""
    found = []
    for key, value in state.items() if isinstance(state, dict) else ():
        if key == "exp_avg":
            found.append(value)
        elif key != "temperature_optimizer":
            found += moments(value)
    return found


@pytest.mark.parametrize("name", [*CLASSES, *registry.VARIANTS])
def test_every_learner_clips_the_entries_of_all_gradients(name):
    """The control has larger ones. Norms are reported before clipping."""
    kind = "discrete" if supports_actions(name, "discrete") else "continuous"
    largest, norms = {}, {}
    for limit in (1e-9, "null"):
        env = env_of(Everything(kind), 4)
        given = {"max_grad_value": limit, "weight_decay": 0.0} | MINIBATCHES.get(name, {})
        algorithm = preset_learner(name, env, "none", **given)
        collector = Collector(env, {env.spec.default_teams()[0].name: algorithm.behavior_policy}, seed=0)
        metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
        found = moments(algorithm.state_dict())
        assert found
        largest[limit] = [x.abs().max().item() for x in found]
        norms[limit] = max(value for key, value in metrics.items() if key.endswith("grad_norm"))
    assert all(x <= 1.001e-9 for x in largest[1e-9])
    assert all(x > 1e-6 for x in largest["null"])
    assert norms[1e-9] > 1e-4


WITH_CRITIC = [name for name in CLASSES if "critic_agent_id" in registry.algorithm(name).Config.model_fields]


def critics_of(name):
    """Returns which of these inputs of the critic an algorithm offers."""
    field = registry.algorithm(name).Config.model_fields.get("critic")
    return [critic for critic in ("own", "joint") if field is None or critic in get_args(field.annotation)]


@pytest.mark.parametrize(("name", "critic"), [(name, critic) for name in WITH_CRITIC for critic in critics_of(name)])
def test_a_critic_reads_the_agents_id_as_configured_or_the_setting_is_refused(name, critic):
    env = env_of(Everything("continuous" if supports_actions(name, "continuous") else "discrete"), 4)
    given = {"critic": critic} if "critic" in registry.algorithm(name).Config.model_fields else {}
    if name in ("mat", "mat_dec", "sable", "ff_sable", "magpo") and critic == "own":
        with pytest.raises(UserError, match=r"algo\.critic=own: expected joint"):
            preset_learner(name, env, "none", **given)
        return

    def shapes(critic_reads_id):
        learner = preset_learner(name, env, "none", critic_agent_id=critic_reads_id, **given)
        critics = {key: x for key, x in learner.state_dict().items() if key.startswith("critic") and "opt" not in key}
        return sum(x.numel() for x in tree_leaves(critics)), [x.shape for x in policy_tensors(learner)]

    if name == "poca" or (critic == "joint" and name not in ("coma", "sac", "masac", "hasac")):
        for value in ("true", "false"):
            with pytest.raises(UserError, match=f"algo.critic_agent_id={value}: has no effect"):
                shapes(value)
        return
    with_id, without = shapes("true"), shapes("false")
    assert with_id[0] > without[0] > 0
    assert with_id[1] == without[1]
    assert shapes("null") in (with_id, without)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLASSES, *registry.VARIANTS, "ippo", "vdn", "qplex", "qfix"])
def test_a_learner_learns_and_when_restored_continues_bit_for_bit(name):
    """With a recurrent network where it is supported, from a copy of the state like that of a checkpoint."""
    rnn = "gru" if registry.algorithm(name).capabilities.rnn else "none"
    env = env_of(Everything(kind_of(name)), 4)
    algorithm, collector, *found = run(name, env, rnn)
    assert_learned(*found)
    state = copy.deepcopy(algorithm.state_dict())
    rollouts = [tree_map(torch.clone, collect_rollout(algorithm, collector)) for _ in range(2)]
    other = preset_learner(name, env, rnn, **MINIBATCHES.get(name, {}))
    other.load_state_dict(state)
    for rollout in rollouts:
        assert algorithm.update(rollout, 0.5) == other.update(rollout, 0.5)
    for one, two in zip(policy_tensors(algorithm), policy_tensors(other), strict=True):
        assert torch.equal(one, two)


# ------------------------------------------------------------------------------------------- one table over algorithms


def weights(algorithm):
    """Returns the networks of a learner, without replayed data and moments of the optimizer."""
    state = algorithm.state_dict()
    parts = [state[key] for key in ("policy", "critic", "critics", "module", "target", "temperature") if key in state]
    return [x.clone() for x in tree_leaves(parts) if isinstance(x, torch.Tensor) and x.is_floating_point()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "rnn", "given"),
    [
        ("ippo", "hybrid", "gru", {}),
        ("mappo", "hybrid", "none", {}),
        *((name, "hybrid", "none", given) for name, given in MINIBATCHES.items()),
        ("poca", "hybrid", "gru", {}),
        ("coma", "multi_discrete", "gru", {"obs_last_action": "true", "critic_last_action": "true"}),
        ("coma", "discrete", "none", {"critic": "joint_state"}),
        ("iql", "discrete", "gru", {}),
        ("vdn", "discrete", "none", {}),
        ("qmix", "discrete", "gru", {}),
        ("qplex", "discrete", "none", {}),
        ("qfix", "discrete", "gru", {}),
        ("pqn_qmix", "discrete", "none", {}),
        ("ddpg", "hybrid", "gru", {"noise": "ornstein_uhlenbeck"}),
        ("maddpg", "hybrid", "none", {"critic": "joint_state"}),
        ("sac", "hybrid", "none", {}),
        ("masac", "hybrid", "gru", {"critic": "joint_state"}),
    ],
)
def test_observations_and_rewards_of_dead_agents_do_not_change_weights(name, kind, rnn, given):
    """NaN and 1e6 result in the same bits, which are finite."""
    found = []
    for dead in (float("nan"), 1e6):
        env = env_of(Everything(kind, dead), 8)
        algorithm = preset_learner(name, env, rnn, normalize_obs="true", **given)
        collector = Collector(env, {algorithm.team.name: algorithm.behavior_policy}, seed=0)
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            assert not rollout.alive.all()
            algorithm.update(rollout, 0.0)
        found.append(weights(algorithm))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "kind", "share", "rnn"),
    [
        *(("mappo", "hybrid", share, rnn) for share, rnn in (("role", "none"), ("all", "gru"), ("none", "gru"))),
        *(("poca", "multi_discrete", share, rnn) for share, rnn in (("all", "none"), ("none", "gru"))),
        *(("coma", "multi_discrete", share, "gru") for share in ("all", "none")),
        *(("maddpg", "hybrid", share, rnn) for share, rnn in (("all", "none"), ("none", "gru"))),
        *(("masac", "hybrid", share, rnn) for share, rnn in (("all", "gru"), ("none", "none"))),
    ],
)
def test_all_kinds_of_parameter_sharing_learn(name, kind, share, rnn):
    """An on-policy update of one step starts from the policy that acted."""
    env = env_of(Everything(kind, equal_roles=True), 8)
    one_step = {"epochs": 1, "num_minibatches": 1} if name in ("mappo", "poca") else {}
    algorithm = preset_learner(name, env, rnn, share_params=share, **one_step)
    collector = Collector(env, {algorithm.team.name: algorithm.behavior_policy}, seed=0)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert all(value > 0 for key, value in metrics.items() if key.endswith("grad_norm"))
    if one_step:
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)


NETWORKS_WITH_TARGETS = {
    "coma": lambda x: [(x.critic, x.target)],
    "qmix": lambda x: [(x.module, x.target)],
    "maddpg": lambda x: [(x.critics, x.target_critics), (x.policy.net, x.target_policy)],
    "masac": lambda x: [(x.nets.critics, x.nets.target)],
}


@pytest.mark.parametrize("name", NETWORKS_WITH_TARGETS)
@pytest.mark.parametrize("interval", ["null", 2])
def test_target_networks_have_soft_and_hard_updates(name, interval):
    """Targets are Polyak averages, or the networks at the last even step."""
    env = env_of(Everything("discrete"), 8)
    one_step = {"gradient_steps": 1} if name != "coma" else {"epochs": 1, "num_minibatches": 1, "critic_time_chunks": 1}
    algorithm = preset_learner(name, env, "none", target_update_interval=interval, tau=0.25, lr=1e-2, **one_step)
    collector = Collector(env, {algorithm.team.name: algorithm.behavior_policy}, seed=0)
    pairs = NETWORKS_WITH_TARGETS[name](algorithm)
    held = [[p.clone() for p in target.module.parameters()] for _, target in pairs]
    for k in range(1, 4):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
        share = 0.25 if interval == "null" else float(k % 2 == 0)
        for place, (network, target) in enumerate(pairs):
            now = [p.clone() for p in target.module.parameters()]
            moved = [was + share * (p.detach() - was) for p, was in zip(network.parameters(), held[place], strict=True)]
            torch.testing.assert_close(now, moved)
            assert any(not torch.equal(p, x) for p, x in zip(network.parameters(), now, strict=True)) or share == 1
            assert not any(p.requires_grad for p in target.module.parameters())
            held[place] = now


@pytest.mark.parametrize("name", ["qmix", "maddpg", "masac"])
def test_updates_wait_for_steps_and_sequences(name):
    env = env_of(Everything("discrete", dead=0.0), 4)
    first = preset_learner(name, env, "none")
    rollout = collect_rollout(first, Collector(env, {first.team.name: first.behavior_policy}, seed=0))
    first.update(rollout, 0.0)
    steps, sequences = first.state_dict()["steps"], first.buffer.num_sequences
    for key, limit in (("learning_starts", steps), ("batch_size", sequences)):
        for value in (limit, limit + 1):
            algorithm = preset_learner(name, env, "none", gradient_steps=1, **{key: value})
            metrics = algorithm.update(rollout, 0.0)
            assert ("value/td_error_abs" in metrics) == (value == limit)
            assert metrics.get("replay/updates", 0) == (value == limit)
            assert algorithm.state_dict()["steps"] == steps
