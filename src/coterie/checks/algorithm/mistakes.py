"""Mistakes that the checks of algorithms recognize by name, and how to fix each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["__init__", "update", "state_dict", "load_state_dict", "policy.act"]


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        meaning: The mistake in one sentence.
        fix: How to fix it.
        method: Method of the algorithm to look at first.
    """

    meaning: str
    fix: str
    method: Method = "update"


MISTAKES: dict[str, Mistake] = {
    # ------------------------------------------------------------------------------------------------------- updates
    "raises": Mistake("the algorithm raises an exception", "Fix the error; COTERIE_DEBUG=1 shows the traceback."),
    "non-finite": Mistake(
        "a metric or a weight is NaN, infinite, or not a number",
        "Return finite Python floats. Look for divisions by zero, logarithms, and masked entries that are multiplied.",
    ),
    "policy-unchanged": Mistake(
        "updates do not change the policy",
        "Check that the optimizer holds the policy's parameters, that the loss is not detached from them, and that "
        "`policy.state_dict` returns them.",
    ),
    # ---------------------------------------------------------------------------------------------- seeds and resume
    "unseeded-randomness": Mistake(
        "random numbers are not drawn from a generator of the algorithm's own seed",
        "Draw with `coterie.core.seeds.generator(context.seed, NAME)` and pass it as `generator=`.",
    ),
    "seed-ignored": Mistake(
        "the initial policy does not depend on the seed",
        "Initialize the networks with a generator from `context.seed`.",
        "__init__",
    ),
    "shared-state": Mistake(
        "instances of the class share state, so one team learns from the data of another",
        "Keep buffers, networks and counters in attributes of the instance, not of the class or the module.",
        "__init__",
    ),
    "optimizer-not-saved": Mistake(
        "the state of the optimizer is missing from the checkpoint",
        "Save and load `optimizer.state_dict()`.",
        "state_dict",
    ),
    "generator-not-saved": Mistake(
        "the state of a random generator is missing from the checkpoint",
        "Save `generator.get_state()`, and load it with `set_state`.",
        "state_dict",
    ),
    "state-not-saved": Mistake(
        "the checkpoint lacks something that later updates depend on",
        "Return it from `state_dict` and restore it in `load_state_dict`.",
        "state_dict",
    ),
    # ---------------------------------------------------------------------------------------- masks and dead agents
    "mask-ignored-in-acting": Mistake(
        "the policy takes choices that are masked",
        "Set the logits or values of masked choices to the lowest number before sampling and before the maximum.",
        "policy.act",
    ),
    "mask-ignored-in-update": Mistake(
        "updates do not depend on the action masks",
        "Apply `rollout.action_mask` wherever the update evaluates the policy or takes a maximum over choices.",
    ),
    "mask-ignored-in-target": Mistake(
        "targets include the values of masked choices",
        "Take the maximum over the choices that are available at the next timestep, `rollout.action_mask[role][1:]`.",
    ),
    "dead-agents-trained": Mistake(
        "timesteps of dead agents are learned from",
        "Exclude them from every loss: `coterie.functional.returns.valid_mask(rollout)`.",
    ),
    # ---------------------------------------------------------------------------------------------- ends of episodes
    "truncation-as-termination": Mistake(
        "truncation is treated as termination",
        "Bootstrap from the next timestep unless `rollout.terminated`. Do not use `terminated | truncated` there.",
    ),
    "termination-bootstrapped": Mistake(
        "the value of the timestep after a termination is added to the return",
        "Multiply the value of the next timestep by `~rollout.terminated`.",
    ),
    "final-timesteps-learned": Mistake(
        "the step after the end of an episode, which only resets the environment, is learned from",
        "Exclude timesteps where `rollout.acted` is False: `coterie.functional.returns.valid_mask(rollout)`.",
    ),
    "actions-shifted": Mistake(
        "actions are paired with the observations of another timestep",
        "`rollout.action[role]` at timestep t was chosen for `rollout.obs[role]` at t.",
    ),
    "rewards-shifted": Mistake(
        "rewards are paired with the observations of another timestep",
        "`rollout.reward` at timestep t is that of the action at t.",
    ),
    "advantage-leaks": Mistake(
        "what happens in an episode changes the returns or advantages of the episode before it",
        "End the recursion over time where `terminated | truncated | ~acted`, not only at termination.",
    ),
    "hidden-state-kept": Mistake(
        "the hidden state is not reset at the first timestep of an episode",
        "Set the hidden state to zero where `timestep.first`, in acting as well as in the update.",
        "policy.act",
    ),
    "hidden-state-kept-in-update": Mistake(
        "the update does not reset the hidden state at the first timestep of an episode",
        "Pass `rollout.first` to the recurrent networks, so that they reset within a sequence.",
    ),
    # ------------------------------------------------------------------------------------------------------ learning
    "wrong-sign": Mistake(
        "the policy learns to take the actions with the lowest reward",
        "Check the sign of the policy's loss: the optimizer descends it, so it is minus the objective.",
    ),
    "reward-not-learned": Mistake(
        "the policy does not learn to take the rewarded action",
        "Check that the reward reaches the policy's loss, and the learning rate.",
    ),
    "observation-ignored": Mistake(
        "the policy does not learn to act differently for different observations",
        "Check that observations, actions and rewards are flattened in the same order of time, environment and agent.",
    ),
    "group-reward-ignored": Mistake(
        "rewards of the group do not reach the agents",
        "Add them with `coterie.functional.returns.agent_rewards`.",
    ),
    "discounted-twice": Mistake(
        "future rewards are discounted too much, as if gamma were applied twice per step",
        "Multiply the value of the next timestep by gamma once.",
    ),
    "not-discounted": Mistake(
        "future rewards are not discounted",
        "Multiply the value of the next timestep by gamma.",
    ),
    "not-bootstrapped": Mistake(
        "rewards of later timesteps do not reach the actions before them",
        "Check that the target adds gamma times the value of the next timestep.",
    ),
    "target-network-frozen": Mistake(
        "the target network is never updated",
        "Copy or interpolate the online parameters into it, see `coterie.algos.optimizer.TargetNetwork`.",
    ),
    "entropy-sign": Mistake(
        "the entropy bonus lowers the entropy of the policy",
        "Subtract the weighted entropy from the loss; add it to the objective.",
    ),
    "recall": Mistake(
        "the recurrent policy does not use what it observed earlier",
        "Check that the hidden state is carried from timestep to timestep and that gradients pass through time.",
    ),
    "value-of-reward": Mistake(
        "the value of the only timestep of an episode is not its reward",
        "Check the target of the critic, the scale of the values, and that the last reward of an episode is included.",
    ),
    "value-ignores-observation": Mistake(
        "values do not depend on the observation as they should",
        "Check that observations and targets are flattened in the same order.",
    ),
}
"""Mistake by name."""
