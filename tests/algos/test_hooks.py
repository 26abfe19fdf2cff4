"""Public methods of learners that subclasses override: advantages, loss terms, targets, mixers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.coma import COMA
from coterie.algos.ddpg import DDPG
from coterie.algos.happo import HAPPO
from coterie.algos.hasac import HASAC
from coterie.algos.mappo_original import MAPPOOriginal
from coterie.algos.poca import POCA
from coterie.algos.ppo import PPO
from coterie.algos.pqn import PQN
from coterie.algos.qlearning import QLearning
from coterie.algos.sac import SAC
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves
from coterie.kernels import switch
from coterie.nets.mixers import VDNMixer
from learners import CPU, collect_rollout, learner_of

CLIPPED = {"hidden_sizes": (8,), "rollout_length": 8, "epochs": 2, "num_minibatches": 2}
REPLAYED = {"hidden_sizes": (8,), "rollout_length": 8, "learning_starts": 0, "batch_size": 8, "gradient_steps": 2}
SETTINGS: dict[Any, dict[str, Any]] = {
    PPO: CLIPPED | {"critic": "joint"},
    HAPPO: CLIPPED,
    POCA: CLIPPED | {"embedding_size": 8},
    COMA: {"hidden_sizes": (8,), "rollout_length": 8, "num_minibatches": 1, "critic_time_chunks": 1},
    QLearning: REPLAYED | {"mixer": "qmix"},
    PQN: CLIPPED | {"mixer": "qmix"},
    DDPG: REPLAYED,
    SAC: REPLAYED,
    HASAC: REPLAYED,
}

HOOKS: list[tuple[Any, str, Callable[[Any], Any]]] = [
    (PPO, "advantages", lambda found: (-found[0], found[1])),
    (PPO, "loss_terms", lambda found: found._replace(policy=3 * found.policy)),
    (HAPPO, "advantages", lambda found: (-found[0], found[1])),
    (HAPPO, "agent_terms", lambda found: found._replace(policy=3 * found.policy)),
    (POCA, "advantages", lambda found: -found),
    (POCA, "returns", lambda found: found + 1),
    (POCA, "loss_terms", lambda found: found._replace(policy=-found.policy)),
    (COMA, "targets", lambda found: (found[0], found[1] * 0.5)),
    (COMA, "loss_terms", lambda found: found._replace(policy=-found.policy)),
    (QLearning, "targets", lambda found: found + 1),
    (QLearning, "loss", lambda found: -found),
    (PQN, "targets", lambda found: found + 1),
    (PQN, "loss", lambda found: -found),
    (DDPG, "targets", lambda found: found + 1),
    (DDPG, "value_loss", lambda found: -found),
    (DDPG, "policy_loss", lambda found: (-found[0], found[1])),
    (SAC, "targets", lambda found: found + 1),
    (SAC, "value_loss", lambda found: -found),
    (SAC, "actor_losses", lambda found: (-found[0], *found[1:])),
    (SAC, "entropy_bonus", lambda found: 2 * found),
    (HASAC, "targets", lambda found: found + 1),
    (HASAC, "agent_loss", lambda found: -found),
]


def overriding(cls: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """Returns a subclass whose method `name` changes the result of the inherited one."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(getattr(super(own, self), name)(*arguments, **named))

    own = type(f"My{cls.__name__}", (cls,), {name: method})
    return own


def weights_after_an_update(cls: Any, settings: dict[str, Any]) -> list[Tensor]:
    learner, collector = learner_of(cls, cls.Config(**settings), env_of(Everything("discrete"), 8))
    learner.update(collect_rollout(learner, collector), 0.5)
    return [x.clone() for x in tree_leaves(learner.state_dict()) if isinstance(x, Tensor) and x.is_floating_point()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("kernels", "cls"), [*(("on", cls) for cls in SETTINGS), ("off", PPO)])
def test_an_overridden_method_changes_an_update(kernels: str, cls: Any):
    """And those that return the results of the inherited ones do not."""
    switch.configure(kernels)  # until the end of the test
    usual, same, hooks = weights_after_an_update(cls, SETTINGS[cls]), cls, [x[1:] for x in HOOKS if x[0] is cls]
    for name, change in hooks:
        same = overriding(same, name, lambda found: found)
        assert not equal(weights_after_an_update(overriding(cls, name, change), SETTINGS[cls]), usual), name
    assert equal(weights_after_an_update(same, SETTINGS[cls]), usual)


class EntropyInPolicyTerm(PPO):
    """PPO with the entropy bonus as an additional term of the loss, in place of the setting."""

    def loss_terms(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Any) -> Any:
        terms = super().loss_terms(log_prob, entropy, value, batch)
        return terms._replace(policy=terms.policy - 0.5 * terms.entropy)


def test_an_additional_term_has_the_gradient_of_the_same_term_of_coterie():
    settings = SETTINGS[PPO] | {"entropy_coef": 0.0}
    own = weights_after_an_update(EntropyInPolicyTerm, settings)
    for one, other in zip(own, weights_after_an_update(PPO, settings | {"entropy_coef": 0.5}), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert not equal(own, weights_after_an_update(PPO, settings))


class SumLearner(QLearning):
    """QMIX whose mixer is a sum."""

    def make_mixer(self, config: Any, team: Any, state_size: int, draw: torch.Generator) -> VDNMixer:
        assert state_size > 0
        return VDNMixer()


@pytest.mark.parametrize("kind", ["qmix", "none"])
def test_a_learner_makes_its_mixer(kind: str):
    """The learner learns from the team's rewards then, whatever the setting."""
    settings = SETTINGS[QLearning] | {"mixer": kind}
    cls = SumLearner if kind == "qmix" else overriding(QLearning, "make_mixer", lambda found: VDNMixer())
    learner, collector = learner_of(cls, cls.Config(**settings), env_of(Everything("discrete"), 8))
    assert isinstance(learner.value.mixer, VDNMixer)
    learner.update(collect_rollout(learner, collector), 0.5)
    assert learner.evaluate_batch(learner.buffer.sample(8).rollout).q.shape == (1, 8)


@pytest.mark.parametrize("name", ["advantages", "loss_terms"])
def test_methods_without_effect_are_refused(name: str):
    cls = overriding(MAPPOOriginal, name, lambda found: found)
    (team,) = env_of(Everything("discrete"), 8).spec.default_teams()
    with pytest.raises(UserError, match=rf"^MyMAPPOOriginal\.{name}: has no effect .* coterie.algos.ppo.PPO\.$"):
        cls(cls.Config(), AlgorithmContext(team=team, num_envs=8, seed=0, device=CPU))
