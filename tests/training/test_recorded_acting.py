"""Collection by recordings has the results of collection without them."""

import pytest
import torch

from coterie.core.tree import tree_map
from coterie.core.types import Action
from coterie.kernels import switch
from coterie.policies.base import Policy, RandomPolicy
from coterie.training.recorded_acting import RecordedActor
from graph_rollouts import CASES, assert_equal, collected, collector_of


@pytest.fixture(autouse=True)
def _kernels():
    switch.configure("on")
    yield
    switch.configure("auto")


def actors_of(collector):
    """Returns the recorded actors of a collector by team."""
    return collector._collect._actors


def recordings_of(actor):
    return list(actor._recorded.values())


@pytest.mark.parametrize("case", CASES)
def test_rollouts_are_those_without_recordings(case):
    recorded, plain = collector_of(case, "cpu"), collector_of(case, "cpu")
    plain._collect._recorded = lambda policies: policies
    assert_equal(collected(recorded, "off"), collected(plain, "off"))
    actors = actors_of(recorded)
    assert actors.keys() == recorded.policies.keys()
    for actor in actors.values():
        (found,) = recordings_of(actor)
        assert found.recording is not None
        assert found.is_checked
        assert found.repeat is not None
    assert not actors_of(plain)


def test_without_kernels_nothing_is_recorded():
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
    assert len(calls) == 2  # recorded, and compared


def test_another_policy_and_other_tensors_are_recorded_again():
    collector = collector_of("spread", "cpu")
    collected(collector, "off", rollouts=1)
    (name,), (actor,) = actors_of(collector), actors_of(collector).values()
    (before,) = recordings_of(actor)
    network = actor.policy.networks[0]
    for module in network.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[key] = torch.nn.Parameter(parameter * 2)
    collected(collector, "off", rollouts=1)
    (after,) = recordings_of(actor)
    assert after is not before
    assert after.is_checked
    other = collector_of("spread", "cpu").policies[name]
    collector.set_policies({name: other})
    collected(collector, "off", rollouts=1)
    assert actors_of(collector)[name].policy is other


def test_changed_constants_are_recorded_again():
    collector = collector_of("epsilon-soft", "cpu")
    expected = collector_of("epsilon-soft", "cpu")
    expected._collect._recorded = lambda policies: policies
    for one in (collector, expected):
        (policy,) = one.policies.values()
        policy.epsilon = 0.5
        one.advance(3)
        policy.epsilon = 0.0
    (actor,) = actors_of(collector).values()
    (before,) = recordings_of(actor)
    one, other = collector.advance(4), expected.advance(4)
    assert recordings_of(actor) != [before]
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
    plain, recorded = (kind(team, torch.device("cpu")) for _ in range(2))
    noise = plain.draw_noise(6, env.num_envs, torch.Generator().manual_seed(0))
    actor = RecordedActor(recorded)
    with torch.inference_mode():
        found = [actor.act(timestep, {}, own, "explore") for own in noise]
        expected = [plain.act(timestep, {}, own, "explore") for own in noise]
    assert_equal(found, expected)
    (own,) = recordings_of(actor)
    assert own.recording is None


def test_only_a_few_numbers_of_environments_are_recorded():
    collector = collector_of("spread", "cpu", num_envs=8)
    (policy,) = collector.policies.values()
    actor = RecordedActor(policy)
    noise = policy.draw_noise(1, 8, torch.Generator().manual_seed(0))[0]
    inputs = (collector.env.reset(0), policy.initial_hidden_state(8), noise)
    with torch.inference_mode():
        for size in (*range(1, 8), 1):
            own = tree_map(lambda x, size=size: x[:size].clone(), inputs)
            assert_equal([actor.act(*own, "explore")], [policy.act(*own, "explore")])
    assert len(recordings_of(actor)) == 4


def test_policies_that_do_not_promise_it_are_not_recorded():
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
    assert collector.actors == [*collector.policies.values()]
    collector.advance(3)
    calls = []
    for actor in collector.actors:
        assert isinstance(actor, RecordedActor) == (setting == "on")
        actor.act = lambda *args, act=actor.act: (calls.append(args), act(*args))[1]
    collector.advance(4)
    assert len(calls) == 2 * 4
