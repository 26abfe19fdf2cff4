"""Collection by traces has the results of collection without them."""

import pytest
import torch

from coterie.core.tree import tree_map
from coterie.core.types import Action
from coterie.kernels import switch
from coterie.nets.user_body import UserBody
from coterie.policies.base import Policy, RandomPolicy
from coterie.training.kernel_acting import KernelActor
from coterie.training.traced_acting import TracedActor, can_be_traced
from graph_rollouts import CASES, assert_equal, collected, collector_of
from preset_learners import preset_learner


@pytest.fixture(autouse=True)
def _kernels():
    switch.configure("on")
    yield
    switch.configure("auto")


def actors_of(collector):
    """Returns the traced actors of a collector by team."""
    return {name: x for name, x in collector.actors.items() if isinstance(x, TracedActor)}


def traces_of(actor):
    return list(actor._traced.values())


@pytest.mark.parametrize("case", CASES)
def test_rollouts_are_those_without_traces(case):
    traced, plain = collector_of(case, "cpu"), collector_of(case, "cpu")
    plain._collect._traced = lambda policies: {**policies}
    assert_equal(collected(traced, "off"), collected(plain, "off"))
    actors = actors_of(traced)
    assert actors.keys() == {name for name, x in traced.actors.items() if not isinstance(x, KernelActor)}
    for actor in actors.values():
        (found,) = traces_of(actor)
        assert found.trace is not None
        assert found.is_checked
        assert found.act is not None
    assert not actors_of(plain)


def test_without_kernels_nothing_is_traced():
    switch.configure("off")
    collector = collector_of("spread", "cpu")
    collected(collector, "off", rollouts=1)
    assert not actors_of(collector)


def test_later_timesteps_do_not_call_the_policy():
    collector = collector_of("epsilon-soft without masks", "cpu")
    (policy,) = collector.policies.values()
    calls = []
    act = policy.act
    policy.act = lambda *args: (calls.append(args), act(*args))[1]
    collected(collector, "off", rollouts=3)
    assert len(calls) == 2  # traced, and compared


def test_another_policy_and_other_tensors_are_traced_again():
    collector = collector_of("epsilon-soft without masks", "cpu")
    collected(collector, "off", rollouts=1)
    (name,), (actor,) = actors_of(collector), actors_of(collector).values()
    (before,) = traces_of(actor)
    network = actor.policy.networks[0]
    for module in network.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[key] = torch.nn.Parameter(parameter * 2)
    collected(collector, "off", rollouts=1)
    (after,) = traces_of(actor)
    assert after is not before
    assert after.is_checked
    other = collector_of("epsilon-soft without masks", "cpu").policies[name]
    collector.set_policies({name: other})
    collected(collector, "off", rollouts=1)
    assert actors_of(collector)[name].policy is other


def test_changed_constants_are_traced_again():
    collector = collector_of("epsilon-soft", "cpu")
    expected = collector_of("epsilon-soft", "cpu")
    expected._collect._traced = lambda policies: {**policies}
    for one in (collector, expected):
        (policy,) = one.policies.values()
        policy.epsilon = 0.5
        one.advance(3)
        policy.epsilon = 0.0
    (actor,) = actors_of(collector).values()
    (before,) = traces_of(actor)
    one, other = collector.advance(4), expected.advance(4)
    assert traces_of(actor) != [before]
    assert_equal([one], [other])


class Fickle(RandomPolicy):
    """A policy that breaks the promise of `cuda_graphs`: it counts its calls."""

    def __init__(self, team, device):
        super().__init__(team, device)
        self.calls = 0

    def act(self, timestep, hidden_state, noise, mode):
        actions, hidden_state, extras = super().act(timestep, hidden_state, noise, mode)
        self.calls += 1
        return {role: Action((x.discrete + self.calls) % 5) for role, x in actions.items()}, hidden_state, extras


class Reading(RandomPolicy):
    """A policy that reads a tensor on the host."""

    def act(self, timestep, hidden_state, noise, mode):
        actions, hidden_state, extras = super().act(timestep, hidden_state, noise, mode)
        if any(float(x.sum()) > 1e9 for x in noise.values()):
            raise AssertionError
        return actions, hidden_state, extras


@pytest.mark.parametrize("kind", [Fickle, Reading])
def test_a_policy_that_cannot_be_repeated_acts_itself(kind):
    env = collector_of("spread", "cpu").env
    team, timestep = env.spec.default_teams()[0], env.reset(0)
    plain, traced = (kind(team, torch.device("cpu")) for _ in range(2))
    noise = plain.draw_noise(6, env.num_envs, torch.Generator().manual_seed(0))
    actor = TracedActor(traced)
    with torch.inference_mode():
        found = [actor.act(timestep, {}, own, "explore") for own in noise]
        expected = [plain.act(timestep, {}, own, "explore") for own in noise]
    assert_equal(found, expected)
    (own,) = traces_of(actor)
    assert own.trace is None


def test_only_a_few_numbers_of_environments_are_traced():
    collector = collector_of("spread", "cpu", num_envs=8)
    (policy,) = collector.policies.values()
    actor = TracedActor(policy)
    noise = policy.draw_noise(1, 8, torch.Generator().manual_seed(0))[0]
    inputs = (collector.env.reset(0), policy.initial_hidden_state(8), noise)
    with torch.inference_mode():
        for size in (*range(1, 8), 1):
            own = tree_map(lambda x, size=size: x[:size].clone(), inputs)
            assert_equal([actor.act(*own, "explore")], [policy.act(*own, "explore")])
    assert len(traces_of(actor)) == 4


def test_policies_that_do_not_promise_it_are_not_traced():
    assert Policy.cuda_graphs is False
    collector = collector_of("spread", "cpu")
    (policy,) = collector.policies.values()
    policy.cuda_graphs = False
    collected(collector, "off", rollouts=1)
    assert not actors_of(collector)


@pytest.mark.parametrize("setting", ["on", "off"])
def test_a_collector_tells_what_acts_at_every_timestep(setting):
    switch.configure(setting)
    collector = collector_of("tag, two teams", "cpu")
    assert collector.actors == {}
    collector.advance(3)
    assert collector.actors.keys() == collector.policies.keys()
    calls = []
    for actor in collector.actors.values():
        assert isinstance(actor, KernelActor) == (setting == "on")
        actor.act = lambda *args, act=actor.act: (calls.append(args), act(*args))[1]
    collector.advance(4)
    assert len(calls) == 2 * 4


class Inherits(RandomPolicy):
    """A user's policy that has the promise of its base class only."""


class Promises(RandomPolicy):
    cuda_graphs = True


def test_policies_of_users_are_traced_if_they_promise_it_themselves():
    team, device = collector_of("spread", "cpu").env.spec.default_teams()[0], torch.device("cpu")
    assert [can_be_traced(kind(team, device)) for kind in (RandomPolicy, Inherits, Promises)] == [True, False, True]


def test_a_policy_with_a_body_of_a_user_is_not_traced():
    """Even if the body consists of PyTorch's modules, which a callback may switch between training and evaluation."""
    env = collector_of("spread", "cpu").env
    learner = preset_learner("ippo", env, "none", env.spec.default_teams()[0], network="torch.nn:Identity")
    assert any(isinstance(module, UserBody) for network in learner.policy.networks for module in network.modules())
    assert not can_be_traced(learner.policy)


class Warming(torch.nn.Linear):
    """A user's network that depends on a Python number, which a callback may change."""

    temperature = 1.0

    def forward(self, input):
        return super().forward(input) / self.temperature


def test_a_policy_with_a_network_of_a_user_is_not_traced():
    collector = collector_of("spread", "cpu")
    (policy,) = collector.policies.values()
    assert can_be_traced(policy)
    policy.networks = (*policy.networks, torch.nn.Sequential(Warming(2, 2)))
    assert not can_be_traced(policy)
    collector.advance(3)
    assert not actors_of(collector)
