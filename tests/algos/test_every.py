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


def run(name, env, rnn, updates=2):
    """Returns the learner, its collector, the metrics of the last update, and the weights before and after."""
    algorithm = preset_learner(name, env, rnn)
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
    _, _, *found = run(name, env_of(Everything(kind), 8), "none")
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
    env = make("probe/image", {}, 8, 0, device=CPU) if world == "image" else env_of(ImageAndVector(), 8)
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
        env = env_of(Everything(kind), 8)
        given = {"sequence_length": 4, "batch_size": 4, "num_minibatches": 2} if name in registry.VARIANTS else {}
        algorithm = preset_learner(name, env, "none", max_grad_value=limit, weight_decay=0.0, **given)
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
@pytest.mark.parametrize("name", [*CLASSES, "ippo", "vdn", "qplex", "qfix"])
def test_a_learner_learns_and_when_restored_continues_bit_for_bit(name):
    """With a recurrent network where it is supported, from a copy of the state like that of a checkpoint."""
    rnn = "gru" if registry.algorithm(name).capabilities.rnn else "none"
    env = env_of(Everything(kind_of(name)), 8)
    algorithm, collector, *found = run(name, env, rnn)
    assert_learned(*found)
    state = copy.deepcopy(algorithm.state_dict())
    rollouts = [tree_map(torch.clone, collect_rollout(algorithm, collector)) for _ in range(2)]
    other = preset_learner(name, env, rnn)
    other.load_state_dict(state)
    for rollout in rollouts:
        assert algorithm.update(rollout, 0.5) == other.update(rollout, 0.5)
    for one, two in zip(policy_tensors(algorithm), policy_tensors(other), strict=True):
        assert torch.equal(one, two)
