"""Algorithms with one deliberate mistake each, which `coterie check-algo` has to recognize by name."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from coterie.algos.ddpg import DDPG
from coterie.algos.ppo import PPO
from coterie.algos.qlearning import QLearning
from coterie.algos.sac import SAC
from coterie.core.tree import tree_map
from coterie.functional.policy_gradient import gae
from coterie.functional.returns import agent_rewards


class TruncationAsTermination(PPO):
    """Uses a single flag `done` for both kinds of ends."""

    def update(self, rollout, progress):
        done = rollout.terminated | rollout.truncated
        return super().update(replace(rollout, terminated=done), progress)


class TerminationBootstrapped(PPO):
    """Adds the value of the next timestep after a termination."""

    def update(self, rollout, progress):
        never, done = torch.zeros_like(rollout.terminated), rollout.terminated | rollout.truncated
        return super().update(replace(rollout, terminated=never, truncated=done), progress)


class AdvantageLeaks(PPO):
    """Resets the recursion of advantages at termination only."""

    def advantages(self, rollout, value, valid):
        reward = agent_rewards(rollout, self._membership, self.team.has_group_reward, common_reward=False)
        ends = rollout.terminated.unsqueeze(-1)
        advantage = gae(
            reward=reward.unsqueeze(-1),
            value=value[:-1],
            next_value=value[1:],
            terminated=ends,
            boundary=ends,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        return advantage, advantage + value[:-1]


class FinalTimestepsLearned(PPO):
    """Learns from the steps that only reset an environment."""

    def update(self, rollout, progress):
        return super().update(replace(rollout, acted=torch.ones_like(rollout.acted)), progress)


class DeadAgentsTrained(PPO):
    """Ignores which agents are alive."""

    def update(self, rollout, progress):
        return super().update(replace(rollout, alive=torch.ones_like(rollout.alive)), progress)


class ActionsShifted(DDPG):
    """Pairs each observation with the action of the next timestep."""

    def update(self, rollout, progress):
        return super().update(replace(rollout, action=tree_map(lambda x: x.roll(-1, 0), rollout.action)), progress)


class MaskIgnoredInActing(QLearning):
    """Takes the best choice, available or not."""

    def __init__(self, config, context):
        super().__init__(config, context)
        act = self.policy.act
        self.policy.act = lambda timestep, *arguments: act(replace(timestep, action_mask={}), *arguments)


class MaskIgnoredInTarget(QLearning):
    """Takes the maximum over all choices in targets."""

    def _masks(self, timesteps):
        return dict.fromkeys([block.name for block in self.policy.blocks])


class TargetNetworkFrozen(QLearning):
    """Never updates the target network."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.target.update = lambda: None


class DiscountedTwice(PPO):
    """Applies gamma twice per step."""

    def __init__(self, config, context):
        super().__init__(config.model_copy(update={"gamma": config.gamma**2}), context)


class NotDiscounted(QLearning):
    """Forgets gamma."""

    def __init__(self, config, context):
        super().__init__(config.model_copy(update={"gamma": 1.0}), context)


class WrongSign(PPO):
    """Descends the objective of the policy."""

    def loss_terms(self, *arguments):
        terms = super().loss_terms(*arguments)
        return terms._replace(policy=-terms.policy)


class EntropySign(PPO):
    """Adds the entropy to the loss."""

    def loss_terms(self, *arguments):
        terms = super().loss_terms(*arguments)
        return terms._replace(entropy=-terms.entropy)


class OptimizerNotSaved(PPO):
    """Leaves the optimizer out of checkpoints."""

    def state_dict(self):
        return {name: part for name, part in super().state_dict().items() if name != "optimizer"}

    def load_state_dict(self, state):
        super().load_state_dict(state | {"optimizer": self.optimizer.state_dict()})


class GeneratorNotSaved(SAC):
    """Leaves the generator of the update's noise out of checkpoints."""

    def load_state_dict(self, state):
        super().load_state_dict(state | {"generator": self.generator.get_state()})


class UnseededRandomness(SAC):
    """Draws from the global generator of PyTorch."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.generator = torch.default_generator


class HiddenStateKept(PPO):
    """Acts with the hidden state of the episode before."""

    def __init__(self, config, context):
        super().__init__(config, context)
        act = self.policy.act
        self.policy.act = lambda timestep, *arguments: act(
            replace(timestep, first=torch.zeros_like(timestep.first)), *arguments
        )


class SharedState(PPO):
    """Keeps the last rollout in an attribute of the class, and learns from it."""

    last: ClassVar = []

    def update(self, rollout, progress):
        self.last[:] = [*self.last[-1:], rollout]
        return super().update(self.last[0], progress)


class ObservationsMixedUp(PPO):
    """Gives each environment the observations of the next one, as after flattening axes in different orders."""

    def update(self, rollout, progress):
        obs = {role: x.roll(1, 1) for role, x in rollout.obs.items()}
        return super().update(replace(rollout, obs=obs), progress)


class Raises(PPO):
    """Fails in its update."""

    def update(self, rollout, progress):
        return super().update(rollout, progress) | {"loss/ratio": 1 / 0}


class NotFinite(PPO):
    """Returns a metric that is not a number."""

    def update(self, rollout, progress):
        return super().update(rollout, progress) | {"loss/policy": float("nan")}


class PolicyUnchanged(PPO):
    """Computes the update, and keeps the old weights."""

    def update(self, rollout, progress):
        state = tree_map(torch.clone, self.policy.state_dict()["module"])
        metrics = super().update(rollout, progress)
        self.policy.actor.load_state_dict(state)
        return metrics


ENDS = ("episode-ends", "time-limit", "dead-agents")
BROKEN: dict[str, tuple[type, tuple[str, ...]]] = {
    "truncation-as-termination": (TruncationAsTermination, ENDS),  # and "values", in a test of its own
    "termination-bootstrapped": (TerminationBootstrapped, ("episode-ends", "dead-agents", "values")),
    "advantage-leaks": (AdvantageLeaks, ENDS),
    "final-timesteps-learned": (FinalTimestepsLearned, ("episode-ends",)),
    "dead-agents-trained": (DeadAgentsTrained, ENDS),
    "actions-shifted": (ActionsShifted, ("episode-ends",)),
    "mask-ignored-in-acting": (MaskIgnoredInActing, ("masks",)),
    "mask-ignored-in-update": (MaskIgnoredInTarget, ("masks",)),
    "mask-ignored-in-target": (MaskIgnoredInTarget, ("masked-value",)),
    "target-network-frozen": (TargetNetworkFrozen, ("discount",)),
    "discounted-twice": (DiscountedTwice, ("discount", "values")),
    "not-discounted": (NotDiscounted, ("discount",)),
    "wrong-sign": (WrongSign, ("reward",)),
    "entropy-sign": (EntropySign, ("entropy", "reward")),
    "optimizer-not-saved": (OptimizerNotSaved, ("determinism", "isolation", "resume")),
    "generator-not-saved": (GeneratorNotSaved, ("determinism", "isolation", "resume")),
    "unseeded-randomness": (UnseededRandomness, ("determinism", "isolation", "resume")),
    "hidden-state-kept": (HiddenStateKept, ("hidden-state",)),
    "shared-state": (SharedState, ("isolation",)),
    "observation-ignored": (ObservationsMixedUp, ("observation",)),
    "raises": (Raises, ("updates", "determinism", "reward")),
    "non-finite": (NotFinite, ("updates",)),
    "policy-unchanged": (PolicyUnchanged, ("updates",)),
}
"""Mistake, the algorithm that makes it, and the checks to run, which find this mistake and no other."""
