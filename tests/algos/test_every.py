"""Every algorithm with every kind of action and observation, with and without memory: it learns, or says why not."""

import copy
import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algos.worlds import Everything, env_of
from coterie import registry
from coterie.collect import Collector
from coterie.config import resolve
from coterie.envs.make import make
from coterie.envs.world import Outcome, View, World
from coterie.errors import UserError
from coterie.metrics import undeclared
from coterie.types import EnvSpec, RoleSpec, tree_leaves, tree_map

CPU = torch.device("cpu")
LEARNERS = [name for name in registry.ALGOS if registry.algorithm(name).capabilities.learns]
SMALL = {
    "hidden": "[8]", "critic_hidden": "[8]", "memory_size": "4", "horizon": "12", "learning_starts": "0", "batch": "4",
    "replay": "2000", "epochs": "2", "embedding": "8", "mixer_size": "4", "mixer_hidden": "4", "random_steps": "20",
    "burn_in": "0", "updates": "2",
}  # fmt: skip


class Sensing(World):
    """Two agents that see a picture and a vector, and are paid by the picture."""

    restart_noise = 2

    def __init__(self):
        seen = spaces.Dict({"eye": spaces.Box(0, 255, (5, 6, 2), np.uint8), "sense": spaces.Box(-9, 9, (3,))})
        self.spec = EnvSpec(
            "sensing", (RoleSpec("agent", "agent", ("a", "b"), seen, spaces.Discrete(3)),), {}, episode_limit=5
        )

    def restart(self, noise):
        return {"x": noise[:, 0], "age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        reward = (action["agent"].discrete[..., 0] == (3 * state["x"]).long()[:, None]).float()
        return {"x": state["x"], "age": state["age"] + 1}, Outcome(reward)

    def view(self, state):
        bright = (255 * state["x"]).to(torch.uint8).view(-1, 1, 1, 1, 1)
        eye = bright.expand(-1, 2, 5, 6, 2)
        return View({"agent": {"eye": eye, "sense": state["age"].view(-1, 1, 1).expand(-1, 2, 3)}})

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


def learner(name, env, memory, team=None):
    """A small learner of the named algorithm, with its preset. UserError for what it does not support."""
    (team,) = env.spec.default_teams() if team is None else (team,)
    cls = registry.algorithm(name)
    cls.capabilities.require(name, team)
    fields = cls.Config.model_fields
    given = [f"algo.{key}={value}" for key, value in SMALL.items() if key in fields]
    given += [f"algo.memory={memory}"] if "memory" in fields else []
    if memory == "none" and "last_action" in fields:
        given.append("algo.last_action=false")
    config = resolve([f"algo={name}", "env=probe/both", *given]).config.algo.params
    return cls(team, config, env.copies, None, 0, CPU)


def run(name, env, memory, updates=3):
    """The learner, its collector, the metrics of the last of so many updates, and the weights before and after."""
    algorithm = learner(name, env, memory)
    collector = Collector(env, {env.spec.default_teams()[0].name: algorithm.policy}, seed=0)
    before = [x.clone() for x in weights(algorithm)]
    metrics = {}
    for k in range(updates):
        (window,) = collector.advance(algorithm.horizon)[0].values()
        metrics = algorithm.update(window, k / updates)
    return algorithm, collector, metrics, before, weights(algorithm)


def weights(algorithm):
    """The policy's tensors."""
    return [x for x in tree_leaves(algorithm.policy.state_dict()) if isinstance(x, torch.Tensor)]


def supports(name, kind):
    return kind in registry.algorithm(name).capabilities.actions


def skips(name, memory):
    """Whether the algorithm has no recurrent networks."""
    return memory != "none" and not registry.algorithm(name).capabilities.memory


CASES = [
    (name, kind, memory)
    for name, kind, memory in itertools.product(LEARNERS, Everything.KINDS, ("none", "gru"))
    if not skips(name, memory)
]


@pytest.mark.parametrize(("name", "kind", "memory"), CASES)
def test_every_algorithm_learns_with_the_actions_it_declares(name, kind, memory):
    """In a team of two roles with different spaces, masks, deaths and rewards of the group; NaN in dead places."""
    env = env_of(Everything(kind), 16)
    if not (supports(name, kind) and supports(name, "discrete")):  # the second role's choices are discrete
        with pytest.raises(UserError, match=f"algo={name} does not support"):
            learner(name, env, memory)
        return
    _, _, metrics, before, after = run(name, env, memory)
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(x.isfinite().all() for x in after)
    assert undeclared(metrics) == []


@pytest.mark.parametrize(("name", "memory"), list(itertools.product(LEARNERS, ("none", "gru"))))
@pytest.mark.parametrize("world", ["image", "sensing"])
def test_every_algorithm_reads_pictures_and_several_sensors(name, memory, world):
    env = make("probe/image", {}, 16, 0, CPU) if world == "image" else env_of(Sensing(), 8)
    if skips(name, memory) or not registry.algorithm(name).capabilities.images:
        with pytest.raises(UserError):
            learner(name, env, memory)
        return
    _, _, metrics, before, after = run(name, env, memory)
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("name", LEARNERS)
def test_every_algorithm_goes_on_where_its_state_was_taken(name):
    """To the bit, with memory where it has one: through a copy of the state, as a checkpoint makes one."""
    memory = "gru" if registry.algorithm(name).capabilities.memory else "none"
    kind = "hybrid" if supports(name, "hybrid") and supports(name, "discrete") else "discrete"
    env = env_of(Everything(kind), 8)
    algorithm, collector, *_ = run(name, env, memory, updates=4)
    state = copy.deepcopy(algorithm.state_dict())
    windows = [next(iter(collector.advance(algorithm.horizon)[0].values())) for _ in range(2)]
    windows = [tree_map(torch.clone, window) for window in windows]
    other = learner(name, env_of(Everything(kind), 8), memory)
    other.load_state_dict(state)
    for window in windows:
        assert algorithm.update(window, 0.5) == other.update(window, 0.5)
    for one, two in zip(weights(algorithm), weights(other), strict=True):
        assert torch.equal(one, two)
