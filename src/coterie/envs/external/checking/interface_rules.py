"""Rules of the Gymnasium and PettingZoo interfaces, and how to fix violations.

The rules of Coterie's own interface are in `coterie.envs.contract.report`.
"""

from __future__ import annotations

from coterie.envs.contract.report import RULES, Rule

INTERFACE_RULES: dict[str, Rule] = {
    # ------------------------------------------------------------------------------------------------ the factory
    "factory": Rule(
        "error",
        "Return a gymnasium.Env, a PettingZoo ParallelEnv or AECEnv, or an object with the same methods and spaces. A "
        "factory of a vectorized environment takes num_envs, seed and device.",
    ),
    "factory-reuses-env": Rule(
        "error", "Make a new environment in every call: several of them are stepped independently of each other."
    ),
    "shared-state": Rule(
        "error",
        "Assign everything that changes during an episode to `self` in `reset`, not to the class or the module, which "
        "all environments share.",
    ),
    # ----------------------------------------------------------------------------------------------------- spaces
    "space-missing": Rule(
        "error",
        "Set `observation_space` and `action_space` in `__init__`. With several agents they are methods that take the "
        "name of an agent.",
    ),
    "space-type": Rule(
        "error",
        "Use spaces of `gymnasium.spaces`. Observations and actions: Box, Discrete, MultiDiscrete, MultiBinary, or a "
        "Dict or Tuple of these. Actions have finite bounds and at least one component.",
    ),
    "space-changes": Rule(
        "error", "Create spaces once in `__init__`, at their largest size, and pad observations to it."
    ),
    # --------------------------------------------------------------------------------------------- returned values
    "reset-signature": Rule(
        "error", "Define `def reset(self, seed=None, options=None)`, and seed the random generator there."
    ),
    "reset-return": Rule(
        "error", "Return the pair (observation, info). With several agents both are dictionaries by agent."
    ),
    "step-return": Rule(
        "error",
        "Return (observation, reward, terminated, truncated, info). Replace `done` by terminated if the task is over, "
        "and by truncated if a limit was reached. With several agents each is a dictionary by agent.",
    ),
    "info-type": Rule("error", "Return a dictionary, which may be empty. With several agents return one for each."),
    "info-missing": Rule("warning", "Return an info for every current agent: `{agent: {} for agent in self.agents}`."),
    "observation-type": Rule("error", "Return what the space describes: an array for a Box, an integer for Discrete."),
    "observation-list": Rule(
        "warning",
        "Return `np.array(observation, space.dtype)`. Lists are slow because they are converted element by element.",
    ),
    "observation-keys": Rule("error", "Return exactly the entries that the space names."),
    "observation-shape": Rule("error", "Return arrays of the space's shape, or change the shape of the space."),
    "observation-dtype": Rule("error", "Convert the observation to the space's dtype, or use float32 for fractions."),
    "observation-precision": Rule(
        "note", "Training is not affected. Use `.astype(space.dtype)` to convert the observation explicitly."
    ),
    "observation-finite": Rule(
        "error", "Look for divisions by zero, roots and logarithms. A training run stops at NaN and infinity."
    ),
    "observation-range": Rule("error", "Widen the bounds of the observation space, or clip observations to them."),
    "observation-reused": Rule(
        "warning",
        "Return a copy. Coterie copies observations at once, but code that keeps what `step` returned (tests, replay "
        "buffers, frame stacking) sees it change.",
    ),
    "reward-type": Rule("error", "Return one number, `float(reward)`. With several agents return one for each."),
    "all-key-ignored": Rule("warning", "Remove '__all__'. An episode is over when every agent has ended."),
    "all-key-mismatch": Rule(
        "error",
        "Set the flag of every agent, `terminations = {agent: over for agent in self.agents}`, and clear "
        "`self.agents`. '__all__' is RLlib's convention and is not read.",
    ),
    "end-flag-type": Rule("error", "Return True or False, `bool(...)`, for every agent. Use False instead of None."),
    "render-output": Rule(
        "error", "Return an RGB image, a uint8 array [height, width, 3], where render_mode is 'rgb_array'."
    ),
    # ----------------------------------------------------------------------------------------------------- agents
    "agents-empty": Rule("error", "Set the current agents in `reset`: `self.agents = list(self.possible_agents)`."),
    "agents-duplicate": Rule("error", "Give every agent a unique name."),
    "agents-unknown": Rule(
        "error", "List all agents that may ever appear in `possible_agents`, or reserve slots with env.max_agents=N."
    ),
    "agents-not-removed": Rule(
        "warning",
        "Remove agents from `self.agents` in the step that ends them. One that terminates and stays begins a new life.",
    ),
    "agents-removed": Rule("error", "Set terminations[agent] or truncations[agent] in the step that removes an agent."),
    "entry-missing": Rule(
        "error",
        "Return an entry for every agent that acted, and an observation for every agent that continues or is "
        "truncated.",
    ),
    "entry-surplus": Rule("warning", "Return nothing for agents that ended before: it is ignored."),
    # ------------------------------------------------------------------------------------------------------ masks
    "mask-size": Rule(
        "error", "Return one mask entry per choice of the action space, the components one after the other."
    ),
    "mask-values": Rule("error", "Return 1 for legal and 0 for illegal choices; no logits, and no list of choices."),
    "mask-late": Rule("error", "Return the mask from `reset` on, all ones for agents without restrictions."),
    "mask-no-action": Rule(
        "warning", "The first action is used instead. Provide a no-op action for agents that must wait."
    ),
    "mask-ignored": Rule(
        "warning",
        "Return the mask of a Discrete or MultiDiscrete space as info['action_mask'], as a part 'action_mask' of a "
        "Dict observation, or by a method action_masks().",
    ),
    # --------------------------------------------------------------------------------------------------- episodes
    "one-step-episodes": Rule(
        "warning", "Check the conditions that end an episode, and `reset`. Ignore this for a bandit problem."
    ),
}
ALL_RULES = RULES | INTERFACE_RULES
