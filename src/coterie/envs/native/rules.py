"""What breaks an interface of others, by name, and how to mend it. The contract's own rules are in `envs.findings`."""

from __future__ import annotations

from coterie.envs.findings import RULES, Rule

NATIVE: dict[str, Rule] = {
    # ----------------------------------------------------------------------------------------------- what is made
    "factory": Rule(
        "error",
        "Return a gymnasium.Env, a ParallelEnv or an AECEnv, or something with the same methods and spaces; a factory "
        "of batches takes copies, seed and device.",
    ),
    "factory-same": Rule("error", "Make a new environment in every call: many copies of it are stepped side by side."),
    "instances-share": Rule(
        "error", "Set what an episode changes on `self` in `reset`, not on the class or the module: copies share those."
    ),
    # ----------------------------------------------------------------------------------------------------- spaces
    "space-missing": Rule(
        "error",
        "Set `observation_space` and `action_space` in `__init__`; with several agents they are methods that take an "
        "agent's name.",
    ),
    "space-kind": Rule(
        "error",
        "Observe a Box, Discrete, MultiDiscrete or MultiBinary of `gymnasium.spaces`, or a Dict or Tuple of these; act "
        "by Discrete, MultiDiscrete, a Box of one axis with finite bounds, or a Tuple of these.",
    ),
    "spaces-by-agent": Rule(
        "error",
        "Write PettingZoo's methods: `def observation_space(self, agent): return self.observation_spaces[agent]`, and "
        "so for `action_space`; name everybody in `possible_agents`, and who lives in `agents`.",
    ),
    "space-changes": Rule(
        "error", "Build spaces once in `__init__`, of the largest size that can be; pad what is observed up to it."
    ),
    # ----------------------------------------------------------------------------------------------- what is returned
    "reset-call": Rule("error", "Write `def reset(self, seed=None, options=None)`, and seed the generator there."),
    "reset-returns": Rule(
        "error", "Return the pair (observation, info); with several agents both are dicts by agent's name."
    ),
    "step-returns": Rule(
        "error",
        "Return (observation, reward, terminated, truncated, info): `done` is terminated if the task is over, "
        "truncated if a limit cut it. With several agents each is a dict by agent's name.",
    ),
    "info-kind": Rule("error", "Return a dict, which may be empty; with several agents one for each."),
    "info-missing": Rule(
        "warning", "Return an info for every agent that lives: `{agent: {} for agent in self.agents}`."
    ),
    "observation-kind": Rule(
        "error", "Return what the space describes: arrays for a Box, a whole number for Discrete."
    ),
    "observation-list": Rule(
        "warning",
        "Return `np.array(observation, space.dtype)`: a list is read number by number in every step, which is slow.",
    ),
    "observation-keys": Rule("error", "Return exactly the parts that the space names."),
    "observation-shape": Rule(
        "error", "Return the shape of the space, or declare in the space the shape that you return."
    ),
    "observation-dtype": Rule("error", "Convert it: numbers of the space's kind, or a space of float32 for fractions."),
    "observation-precision": Rule("note", "Nothing is lost that learning needs; `.astype(space.dtype)` would say so."),
    "observation-finite": Rule(
        "error", "Look for divisions by zero, roots and logarithms; a run stops at such a number."
    ),
    "observation-range": Rule("error", "Widen the bounds of the observation space, or clip what is observed to them."),
    "observation-reused": Rule(
        "warning",
        "Return a copy. Coterie takes its own at once, but whoever keeps what `step` returned (a test, a replay, a "
        "wrapper that stacks frames) sees it change.",
    ),
    "reward-kind": Rule("error", "Return one number: `float(reward)`; every agent has its own."),
    "all-key": Rule("warning", "Leave '__all__' out: an episode is over once every agent has ended."),
    "all-over": Rule(
        "error",
        "Say it of every agent by its name, `terminations = {agent: over for agent in self.agents}`, and empty "
        "`self.agents`: '__all__' is RLlib's and is not read.",
    ),
    "end-kind-of": Rule("error", "Return True or False: `bool(...)`, one an agent; a missing end is False, not None."),
    "picture": Rule("error", "Return a numpy array of uint8 [height, width, 3] where render_mode is 'rgb_array'."),
    # ----------------------------------------------------------------------------------------------------- agents
    "agents-none": Rule(
        "error", "Put who lives into `self.agents` in `reset`: `self.agents = list(self.possible_agents)`."
    ),
    "agents-twice": Rule("error", "Give every agent a name of its own."),
    "agents-unknown": Rule(
        "error", "Name everybody who may ever appear in `possible_agents`, or give slots: env.max_agents=N."
    ),
    "agents-kept": Rule("warning", "Take who ended out of `self.agents` in the step that ends it."),
    "agents-vanish": Rule("error", "Say terminations[agent] or truncations[agent] in the step that takes it out."),
    "missing": Rule(
        "error",
        "Return an entry for every agent that acted, and an observation for everybody who lives on, or is cut.",
    ),
    "surplus": Rule("warning", "Return nothing of who ended before: it is not looked at."),
    # ------------------------------------------------------------------------------------------------------ masks
    "mask-size": Rule("error", "Show one entry a choice: as many as the action space has, all components in a row."),
    "mask-kind": Rule(
        "error", "Show 1 for what can be done and 0 for what cannot; no logits, no list of legal choices."
    ),
    "mask-late": Rule("error", "Show the mask from `reset` on; who may do anything shows ones."),
    "mask-nothing": Rule("warning", "The first choice is taken there; leave one that does nothing to who has to wait."),
    "mask-unread": Rule(
        "warning",
        "Masks of a gymnasium.Env are not read: write it as a ParallelEnv with one agent to have them obeyed.",
    ),
    # --------------------------------------------------------------------------------------------------- episodes
    "one-step": Rule("warning", "Nothing to do for a bandit; otherwise look at what ends an episode, and at `reset`."),
}
ALL = RULES | NATIVE
