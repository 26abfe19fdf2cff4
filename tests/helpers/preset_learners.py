"""Small learners of every algorithm with its preset, and a world of images and vectors."""

from __future__ import annotations

from types import NoneType

import numpy as np
import torch
from gymnasium import spaces

from coterie.algos import registry
from coterie.algos.algorithm import AlgorithmContext
from coterie.assembly.resolve import resolve
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.tree import tree_leaves
from coterie.envs.worlds.world import Observation, Outcome, World

LEARNERS = [name for name in registry.ALGOS if registry.algorithm(name).capabilities.learns]
FAMILIES = (
    *("mappo", "vdac", "seac", "pac", "happo", "hatrpo", "poca", "coma", "qmix", "pqn_qmix", "matd3", "masac"),
    *("hasac", "magpo"),
)
"""One algorithm for each class of learners with recurrent networks. The others differ from them in their presets."""
CLASSES = tuple({registry.algorithm(name): name for name in (*reversed(LEARNERS), *FAMILIES)}.values())
"""One algorithm for each class of learners, those of FAMILIES where they have it."""
SMALL = {
    "hidden_sizes": "[8]", "critic_hidden_sizes": "[8]", "rnn_size": "4", "rollout_length": "12",
    "learning_starts": "0", "batch_size": "4", "buffer_size": "2000", "epochs": "2", "embedding_size": "8",
    "mixing_embed_dim": "4", "hypernet_embed_dim": "4", "random_steps": "20", "burn_in": "0", "gradient_steps": "2",
    "cg_iterations": "2",
}  # fmt: skip


class ImageAndVector(World):
    """Two agents that observe an image and a vector, and are rewarded for a choice that the image names."""

    reset_noise_size = 2

    def __init__(self):
        space = spaces.Dict({"image": spaces.Box(0, 255, (5, 6, 2), np.uint8), "vector": spaces.Box(-9, 9, (3,))})
        role = RoleSpec("agent", "agent", ("a", "b"), space, spaces.Discrete(3))
        self.spec = EnvSpec("image_and_vector", (role,), {}, episode_limit=5)

    def reset(self, noise):
        return {"x": noise[:, 0], "age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        reward = (action["agent"].discrete[..., 0] == (3 * state["x"]).long()[:, None]).float()
        return {"x": state["x"], "age": state["age"] + 1}, Outcome(reward)

    def observe(self, state):
        brightness = (255 * state["x"]).to(torch.uint8).view(-1, 1, 1, 1, 1)
        image = brightness.expand(-1, 2, 5, 6, 2)
        return Observation({"agent": {"image": image, "vector": state["age"].view(-1, 1, 1).expand(-1, 2, 3)}})

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


def preset_learner(name, env, rnn, team=None, streams=(), *, cuda_graphs=False, **given):
    """Returns a small learner of the named algorithm with its preset; raises UserError for unsupported teams."""
    (team,) = env.spec.default_teams() if team is None else (team,)
    cls = registry.algorithm(name)
    cls.capabilities.check(name, team)
    fields = cls.Config.model_fields
    settable = [key for key in SMALL if key in fields and fields[key].annotation is not NoneType]
    settings = [f"algo.{key}={SMALL[key]}" for key in settable]
    settings += [f"algo.rnn={rnn}"] if "rnn" in fields else []
    if rnn == "none" and "obs_last_action" in fields:
        settings.append("algo.obs_last_action=false")
    settings += [f"algo.{key}={value}" for key, value in given.items()]
    config = resolve([f"algo={name}", "env=probe/both", *settings]).config.algo.params
    context = AlgorithmContext(
        team=team,
        num_envs=env.num_envs,
        seed=0,
        device=env.device,
        reward_streams=streams,
        cuda_graphs=cuda_graphs,
    )
    return cls(config, context)


def policy_tensors(learner):
    """Returns the tensors of the learner's policy."""
    return [x for x in tree_leaves(learner.policy.state_dict()) if isinstance(x, torch.Tensor)]


def supports_actions(name, kind):
    return kind in registry.algorithm(name).capabilities.actions


def supports_rnn(name, rnn):
    """Returns True unless this is a recurrent network and the algorithm supports none."""
    return rnn == "none" or registry.algorithm(name).capabilities.rnn
