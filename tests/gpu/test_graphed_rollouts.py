"""Rollouts as CUDA graphs, on a fake device that replays operations without the Python around them."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.scripted import ScriptedPolicy
from coterie.config.samplers import parse_sampler
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.envs.contract.side_swap import SideSwapEnv
from coterie.envs.make import make
from coterie.policies.base import RandomPolicy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy
from coterie.policies.remapped import RemappedPolicy
from coterie.training.collection import obstacle
from coterie.training.collector import Collector
from fakecuda import CUDA, fake_cuda
from graph_rollouts import (
    STEPS,
    assert_equal,
    assert_rollouts_are_those_without_graphs,
    collected,
    collector_of,
    copied,
    set_exploration,
)
from graph_training import Training
from preset_learners import preset_learner

FAST = {"matrix game", "epsilon-greedy"}
STAND_IN = [*sorted(FAST), "two teams with deaths and masks", "epsilon-soft", "noise on actions"]
"""One case per kind of policy and world. All of them are tested on a GPU, in `test_graphs_on_gpu.py`."""
EXPLORATION = [
    "epsilon-greedy, components", "epsilon-soft", "epsilon-soft without masks", "noise on actions",
    "Ornstein-Uhlenbeck noise",
]  # fmt: skip
SCALES = (0.2, 0.8)


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in FAST else pytest.mark.slow) for c in STAND_IN])
def test_rollouts_are_those_without_graphs(cuda, case):
    assert_rollouts_are_those_without_graphs(case, CUDA)


@pytest.mark.slow
def test_another_number_of_envs_and_another_length_are_captured_again(cuda):
    eager, captured = (collector_of("deaths and masks", CUDA, num_envs=3) for _ in range(2))
    for steps in (4, 6, 4):
        assert_equal(collected(captured, "on", 1, steps), collected(eager, "off", 1, steps))
    assert captured._collect.captures == 2


def test_a_captured_rollout_executes_no_python_per_timestep(cuda, monkeypatch):
    collector = collector_of("deaths and masks", CUDA)
    collected(collector, "on", 1)
    env, (policy,) = collector.env, collector.policies.values()
    for part, name in ((env, "step"), (policy, "act"), (env.world, "observe")):
        monkeypatch.setattr(part, name, None)
    cuda.reads.clear()
    cuda.copies.clear()
    collector.advance(STEPS)
    assert cuda.reads == {"training/collector:_checked_counts": 1}
    assert cuda.copies == {"training/rollout_builder:team_rollout": 1}  # the team's groups


def test_the_next_rollout_changes_no_results(cuda):
    collector = collector_of("two teams with deaths and masks", CUDA)
    collector._collect.cuda_graphs = True
    collector.advance(STEPS)
    results = [collector.advance(STEPS)[0], collector.state_dict(), collector.last_finished.state_dict()]
    before = tree_map(copied, results)
    collector.advance(STEPS)
    assert_equal([tree_map(copied, results)], [before])


def test_a_restored_state_continues_exactly(cuda):
    """In a collector that captures after it, in one that has captured before, and without graphs."""
    first, fresh, used, eager = (collector_of("deaths and masks", CUDA) for _ in range(4))
    collected(used, "on", 3)
    collected(first, "on", 2)
    saved = tree_map(copied, first.state_dict())
    expected = collected(first, "on", 2)
    for other, setting in ((fresh, "on"), (used, "on"), (eager, "off")):
        other.load_state_dict(saved)
        assert_equal(collected(other, setting, 2), expected)
    assert used._collect.captures == 1


def test_learning_is_read_in_place(cuda):
    """Also statistics of observations, which are updated after each rollout."""
    results = []
    for setting in ("off", "on"):
        training = Training("ippo", "none", CUDA, normalize_obs=True)
        training._collector._collect.cuda_graphs = setting == "on"  # gradient steps with graphs have other last bits
        for k in range(3):
            rollout = training.collect()
            training.learner.update(rollout, k / 3)
        results.append((rollout.extras["log_prob"].cpu(), training.tensors()))
    assert_equal(results[1:], results[:1])
    assert training._collector._collect.captures == 1


@pytest.mark.parametrize("case", EXPLORATION)
def test_exploration_is_that_on_the_cpu(case):
    """The same policy acts on the same timestep, whose exploration is set after it has acted before."""
    collector = collector_of(case, "cpu", num_envs=64)
    (policy,), timestep = collector.policies.values(), collector.env.reset()
    (noise,) = policy.draw_noise(1, 64, torch.Generator().manual_seed(0))
    acted = []
    with torch.no_grad():
        for scale in SCALES:
            set_exploration(collector, scale)
            acted.append(policy.act(timestep, policy.initial_hidden_state(64), noise, "explore"))
    with fake_cuda(), torch.no_grad():
        collector = collector_of(case, CUDA, num_envs=64)
        (policy,) = collector.policies.values()
        timestep, noise = tree_map(lambda x: x.to(CUDA), (timestep, noise))
        for scale, expected in zip(SCALES, acted, strict=True):
            set_exploration(collector, scale)
            found = policy.act(timestep, policy.initial_hidden_state(64), noise, "explore")
            assert_equal([tree_map(copied, found)], [expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["deterministic, uniform", "squashed, uniform", "epsilon-soft"])
def test_another_kind_of_exploration_is_captured_again(cuda, case):
    """The end of uniform actions, and of the mixture with uniform choices. A number is read in place."""
    eager, captured = (collector_of(case, CUDA) for _ in range(2))
    for k in range(2):
        for collector in (eager, captured):
            (policy,) = collector.policies.values()
            if isinstance(policy, EpsilonSoftPolicy):
                policy.epsilon = 0.0 if k else 0.5
            else:
                policy.uniform = not k
        captured._collect.cuda_graphs = True
        found = [tree_map(copied, captured.advance(STEPS)) for _ in range(2)]
        assert_equal(found, [tree_map(copied, eager.advance(STEPS)) for _ in range(2)])
        assert captured._collect.captures == 1


def test_replaced_policies_are_captured_again(cuda):
    eager, captured = (collector_of("two teams with deaths and masks", CUDA) for _ in range(2))
    for k in range(3):
        for collector in (eager, captured):
            team = collector.policies["scout"].team
            frozen = preset_learner("ippo", collector.env, "none", team).policy
            collector.set_policies({"scout": RemappedPolicy(team, frozen, "greedy")} if k == 1 else {})
        assert_equal(collected(captured, "on", 2), collected(eager, "off", 2))
        assert captured._collect.captures == 1


def test_a_replaced_parameter_is_captured_again(cuda):
    eager, captured = (collector_of("deaths and masks", CUDA) for _ in range(2))
    for k in range(2):
        for collector in (eager, captured):
            (policy,) = collector.policies.values()
            name, value = next(policy.networks[0].named_parameters())
            owner, _, name = name.rpartition(".")
            setattr(policy.networks[0].get_submodule(owner), name, torch.nn.Parameter(value.detach() + k))
        assert_equal(collected(captured, "on", 2), collected(eager, "off", 2))
    assert captured._collect.captures == 2


@pytest.mark.slow
def test_changed_parameters_and_seeds_of_the_environment_are_captured_again(cuda):
    eager, captured = (collector_of("spread", CUDA) for _ in range(2))
    samplers = [{"local_ratio": parse_sampler(x)} for x in ({"uniform": [0, 1]}, {"choices": [0.1, 0.9]})]
    for change in (
        lambda collector: None,
        lambda collector: collector.env.set_samplers(samplers[0]),
        lambda collector: collector.env.set_samplers(samplers[1]),
        lambda collector: (collector.env.reset(seed=5), collector.restart()),
    ):
        for collector in (eager, captured):
            change(collector)
        assert_equal(collected(captured, "on", 2), collected(eager, "off", 2))
        assert captured._collect.captures == 1


class Reading(Everything):
    """A world that reads a tensor on the host."""

    def step(self, state, action, noise):
        assert state["x"].sum().item() >= 0
        return super().step(state, action, noise)


class DeclaredReading(Reading):
    cuda_graphs = False


def random_collector(world):
    env = env_of(world, 4, device=CUDA)
    policies = {team.name: RandomPolicy(team, CUDA) for team in env.spec.default_teams()}
    return Collector(env, policies, seed=0, cuda_graphs=True)


def test_a_world_that_reads_on_the_host_is_refused_in_one_line(cuda):
    with pytest.raises(UserError) as error:
        random_collector(Reading(dead=0.0)).advance(STEPS)
    assert str(error.value) == (
        "cuda_graphs=on: collection in everything cannot be captured as a CUDA graph (read by the host in "
        "envs/worlds/world:_advance while a graph is captured). Use cuda_graphs=off."
    )


def test_a_world_that_declares_reads_is_collected_from_without_graphs(cuda):
    found, expected = (random_collector(DeclaredReading(dead=0.0)) for _ in range(2))
    assert_equal(collected(found, "on"), collected(expected, "off"))
    assert found._collect.captures == 0
    assert obstacle(found.env, found.policies) == ("steps of everything do not consist of operations on the GPU only")


def test_environments_and_policies_that_cannot_be_captured_are_named(cuda):
    world = random_collector(Everything(dead=0.0))
    assert obstacle(world.env, world.policies) is None
    on_host = env_of(Everything(dead=0.0), 4)
    assert obstacle(on_host, {}) == "everything is on the device cpu"
    duel = make("skirmish/3m_duel", {}, num_envs=2, seed=0, device=torch.device(CUDA))
    assert obstacle(duel, {}) is None
    assert obstacle(SideSwapEnv(duel), {}) == "steps of 3m_duel do not consist of operations on the GPU only"
    for name in ("ippo", "iql", "coma", "maddpg", "masac"):
        assert obstacle(world.env, {"all": preset_learner(name, world.env, "none").policy}) is None
    (team,) = world.env.spec.default_teams()
    script = ScriptedPolicy(team, lambda timestep: {}, "still", checked=False, device=world.env.device)
    for policy in (script, RemappedPolicy(team, script, "greedy")):
        assert obstacle(world.env, {"all": policy}) == (
            "the policy of team all does not act by operations on the GPU and tensors only"
        )
