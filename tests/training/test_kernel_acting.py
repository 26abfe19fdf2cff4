"""Acting by the kernel, and rollouts by it, have the results of the policy and of single steps."""

from dataclasses import replace

import pytest
import torch

from coterie.config.samplers import Uniform
from coterie.core.tree import tree_leaves, tree_map
from coterie.envs.make import make
from coterie.envs.worlds.world import WorldEnv
from coterie.kernels import switch
from coterie.training.collector import Collector
from coterie.training.kernel_acting import KernelActor, kernel_actor
from graph_rollouts import assert_equal, copied, set_exploration
from preset_learners import preset_learner

LAST, IDS = {"obs_last_action": "true"}, {"obs_agent_id": "true", "normalize_obs": "true"}
SPREAD, FORAGING = ("particle/simple_spread", {"episode_limit": 7}), ("foraging/5x5-2p-1f", {})
SKIRMISH = ("skirmish/3m", {"episode_limit": 9})
CASES = {
    "greedy Q": (SPREAD, "vdn", "none", {"normalize_obs": "false", "obs_agent_id": "false"}),
    "inputs of Q": (SPREAD, "qmix", "gru", LAST | IDS),
    "masks and deaths of Q": (SKIRMISH, "qmix", "gru", LAST | IDS),
    "normalized layers": (FORAGING, "iql", "none", {"layer_norm": "true", "activation": "relu"}),
    "normalized inputs of activations": (FORAGING, "pqn_vdn", "none", {}),
    "logits": (SPREAD, "ippo", "gru", IDS),
    "masks and deaths of logits": (SKIRMISH, "ippo", "gru", {}),
}


@pytest.fixture(autouse=True)
def _kernels():
    switch.configure("on")
    yield
    switch.configure("auto")


def collector_of(case, num_envs=5):
    (name, settings), algo, rnn, config = CASES[case]
    env = make(name, settings, num_envs=num_envs, seed=0, device=torch.device("cpu"), with_state=True)
    (team,) = env.spec.default_teams()
    fewer = {"num_minibatches": 1} if algo == "ippo" else {}
    policy = preset_learner(algo, env, rnn, team, **fewer | config).policy
    for scale in policy.obs_normalizer.scales.values():
        scale.mean.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(1))
        scale.std.uniform_(0.1, 2.0, generator=torch.Generator().manual_seed(2))
    return Collector(env, {team.name: policy}, seed=0)


def collected(collector, lengths=(5, 1, 9, 30)):
    found = []
    for k, length in enumerate(lengths):
        set_exploration(collector, 0.8 - 0.2 * k)
        rollouts, count = collector.advance(length)
        state = collector.state_dict()
        found.append((tree_map(copied, (rollouts, state, collector.last_finished.state_dict())), count))
    return found


@pytest.mark.parametrize("case", CASES)
def test_rollouts_are_those_of_the_policy(case, monkeypatch):
    by_kernel, plain = collector_of(case), collector_of(case)
    plain._collect._traced = lambda policies: {**policies}
    calls = []
    (policy,) = by_kernel.policies.values()
    monkeypatch.setattr(policy, "act", lambda *args: calls.append(args))
    found = collected(by_kernel)
    assert [type(actor) for actor in by_kernel.actors.values()] == [KernelActor]
    assert not calls
    assert_equal(found, collected(plain))


@pytest.mark.parametrize("case", ["inputs of Q", "masks and deaths of logits"])
def test_greedy_actions_are_those_of_the_policy(case):
    collector = collector_of(case)
    (policy,), timestep = collector.policies.values(), collector.env.reset(0)
    actor, state = kernel_actor(policy), policy.initial_hidden_state(5)
    assert actor is not None
    with torch.inference_mode():
        for obs in (1.0, torch.nan, torch.inf):
            then = tree_map(lambda x, obs=obs: x * obs if x.is_floating_point() else x, timestep)
            assert_equal([actor.act(then, state, {}, "greedy")], [policy.act(then, state, {}, "greedy")])


def test_only_worlds_without_a_kernel_for_rollouts_are_stepped_one_by_one(monkeypatch):
    collector, calls = collector_of("logits"), []
    step = WorldEnv.step
    monkeypatch.setattr(WorldEnv, "step", lambda env, action: (calls.append(env), step(env, action))[1])
    collector.advance(16)  # two episodes of seven steps and a final timestep each
    assert not calls
    collector.env.world.several_steps = None
    collector.advance(3)
    assert len(calls) == 3


@pytest.mark.parametrize("ends", ["varying parameters", "terminate at the limit"])
def test_episodes_begin_with_parameters_of_their_own_and_end_as_the_world_says(ends):
    found = []
    for traced in (True, False):
        collector = collector_of("inputs of Q")
        if ends == "varying parameters":
            collector.env.set_samplers(
                {
                    "local_ratio": Uniform(uniform=(0.1, 0.9)),
                    "damping": Uniform(uniform=(0.1, 0.5)),
                    "collision_cost": Uniform(uniform=(1, 3)),
                }
            )
        else:
            collector.env.world.terminate_at_limit = True
        if not traced:
            collector._collect._traced = lambda policies: {**policies}
        found.append(collected(collector))
    assert_equal(*found)


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("length", [1, 9])
def test_a_rollout_shares_no_memory_with_the_environment(length, value):
    written, plain = collector_of("logits"), collector_of("logits")
    for _ in range(9):
        rollouts = [tree_leaves(collector.advance(length)[0]) for collector in (written, plain)]
        assert_equal([x.clone() for x in rollouts[0]], [x.clone() for x in rollouts[1]])
        for x in rollouts[0]:
            x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).fill_(value)


def test_episodes_out_of_phase_end_at_their_own_limits():
    by_kernel, plain = collector_of("greedy Q"), collector_of("greedy Q")
    plain._collect._traced = lambda policies: {**policies}
    for collector in (by_kernel, plain):
        collector.advance(1)
        state = collector.env.state_dict()
        collector.env.load_state_dict(state | {"age": torch.tensor([0, 2, 4, 1, 6])})
    assert_equal(collected(by_kernel), collected(plain))


@pytest.mark.parametrize(
    "config",
    [{"share_params": "none"}, {"rnn": "lstm"}, {"network": "torch.nn:Identity"}, {"activation": "elu"}],
    ids=lambda config: next(iter(config)),
)
def test_policies_with_other_parts_act_as_before(config):
    env = make(*SPREAD, num_envs=2, seed=0, device=torch.device("cpu"), with_state=False)
    (team,) = env.spec.default_teams()
    rnn = config.get("rnn", "none")
    learner = preset_learner(
        "ippo", env, rnn, team, num_minibatches=1, **{k: v for k, v in config.items() if k != "rnn"}
    )
    actor = kernel_actor(learner.policy)
    assert actor is None or actor.prepared(env.reset(0)) is None
    collector = Collector(env, {team.name: learner.policy}, seed=0)
    assert collector.advance(3)[1] == 6


def test_networks_that_are_replaced_act_in_the_next_rollout():
    by_kernel, plain = collector_of("logits"), collector_of("logits")
    plain._collect._traced = lambda policies: {**policies}
    for collector in (by_kernel, plain):
        collector.advance(2)
        (policy,) = collector.policies.values()
        for module in policy.networks[0].modules():
            for key, parameter in list(module._parameters.items()):
                module._parameters[key] = torch.nn.Parameter(parameter * 2)
    assert_equal(collected(by_kernel), collected(plain))


def test_inputs_that_the_kernel_would_read_as_something_else_are_refused():
    collector = collector_of("inputs of Q")
    (policy,), timestep = collector.policies.values(), collector.env.reset(0)
    actor, state = kernel_actor(policy), policy.initial_hidden_state(5)
    noise = policy.draw_noise(1, 5, torch.Generator().manual_seed(0))[0]
    assert actor is not None
    wrong = [
        (timestep, {**state, "h": state["h"][:, :, :-1]}, noise),
        (timestep, {**state, "h": state["h"][:4]}, noise),
        (timestep, {"h": state["h"]}, noise),
        (timestep, state, noise[..., :-1]),
        (replace(timestep, first=timestep.first[:, :2]), state, noise),
        (replace(timestep, action_mask={"agent": torch.ones(5, 3, 4, dtype=torch.bool)}), state, noise),
    ]
    with torch.inference_mode():
        for arguments in wrong:
            with pytest.raises(ValueError, match=r"^rollout: "):
                actor.act(*arguments, "explore")
        with pytest.raises(TypeError, match=r"^rollout: h is torch.float64"):
            actor.act(timestep, {**state, "h": state["h"].double()}, noise, "explore")


def test_observations_of_another_type_are_left_to_the_policy():
    collector = collector_of("greedy Q")
    (policy,), timestep = collector.policies.values(), collector.env.reset(0)
    double = tree_map(lambda x: x.double() if x.is_floating_point() else x, timestep)
    actor = kernel_actor(policy)
    assert actor is not None
    assert actor.prepared(double) is None
    assert actor.prepared(timestep) is not None
