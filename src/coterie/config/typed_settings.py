"""Settings as types: editors complete the arguments of `coterie.train`, and type checkers check them.

`docs/generate.py` writes this file from the configuration models, which check the values when a run starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

Count = int | float | str
"""An integer that may be written as 1e6, or as a text: "20M", "500k"."""

Code = Callable[..., Any]
"""A function or class: one that makes environments, an algorithm, a network, or a mixer."""


# fmt: off
AlgoName = Literal[
    "coma", "coma/original", "ddpg", "ddqn", "ff_sable", "frozen", "haa2c", "happo", "hasac", "hatrpo", "ia2c", "ippo",
    "ippo/yardstick", "iql", "maa2c", "maddpg", "maddpg/original", "magpo", "mappo", "mappo/original",
    "mappo/original_tag", "masac", "mat", "mat_dec", "matd3", "pac", "poca", "ppo", "pqn", "pqn_qmix", "pqn_vdn",
    "qfix", "qmix", "qplex", "random", "sable", "sac", "scripted", "seac", "td3", "vdac", "vdn", "wqmix",
]

ParticleName = Literal[
    "particle/collect_treasure", "particle/simple", "particle/simple_adversary", "particle/simple_ball",
    "particle/simple_crypto", "particle/simple_formation", "particle/simple_line", "particle/simple_push",
    "particle/simple_reference", "particle/simple_speaker_listener", "particle/simple_spread", "particle/simple_tag",
    "particle/simple_world_comm",
]

MatrixName = Literal[
    "matrix/battle_of_sexes", "matrix/climbing", "matrix/coordination", "matrix/hawk_dove", "matrix/matching_pennies",
    "matrix/monotonic", "matrix/penalty", "matrix/prisoners_dilemma", "matrix/rock_paper_scissors", "matrix/stag_hunt",
    "matrix/two_step",
]

ProbeName = Literal[
    "probe/constant", "probe/observation", "probe/delayed", "probe/action", "probe/both", "probe/endless",
    "probe/masked", "probe/memory", "probe/roles", "probe/additive", "probe/irrelevant", "probe/sacrifice",
    "probe/sum", "probe/continuous", "probe/flat", "probe/multi_discrete", "probe/hybrid", "probe/image",
]

CoopName = Literal[
    "coop/baton", "coop/escape", "coop/pushblock",
]

ForagingName = Literal[
    "foraging/8x8-2p-2f", "foraging/8x8-2p-2f-coop", "foraging/2s-8x8-2p-2f-coop", "foraging/10x10-3p-3f",
    "foraging/2s-10x10-3p-3f", "foraging/15x15-3p-5f", "foraging/15x15-4p-3f", "foraging/15x15-4p-5f",
]

SkirmishName = Literal[
    "skirmish/2m_vs_1z", "skirmish/3m", "skirmish/8m", "skirmish/25m", "skirmish/5m_vs_6m", "skirmish/8m_vs_9m",
    "skirmish/10m_vs_11m", "skirmish/27m_vs_30m", "skirmish/MMM", "skirmish/MMM2", "skirmish/2s3z", "skirmish/3s5z",
    "skirmish/3s5z_vs_3s6z", "skirmish/3s_vs_3z", "skirmish/3s_vs_4z", "skirmish/3s_vs_5z", "skirmish/2s_vs_1sc",
    "skirmish/6h_vs_8z", "skirmish/corridor", "skirmish/2c_vs_64zg", "skirmish/3m_duel", "skirmish/8m_duel",
    "skirmish/25m_duel", "skirmish/MMM_duel", "skirmish/2s3z_duel", "skirmish/3s5z_duel",
]

BoardName = Literal[
    "board/connect_four", "board/tictactoe",
]

SparseName = Literal[
    "sparse/rooms", "sparse/plates",
]

OvercookedName = Literal[
    "overcooked/cramped_room", "overcooked/asymmetric_advantages", "overcooked/coordination_ring",
    "overcooked/forced_coordination", "overcooked/counter_circuit_o_1order",
]

WarehouseName = Literal[
    "warehouse/tiny-2ag", "warehouse/tiny-2ag-easy", "warehouse/tiny-2ag-hard", "warehouse/tiny-4ag",
    "warehouse/tiny-4ag-easy", "warehouse/tiny-4ag-hard", "warehouse/small-4ag", "warehouse/small-4ag-easy",
    "warehouse/small-4ag-hard", "warehouse/medium-6ag", "warehouse/medium-6ag-easy", "warehouse/medium-6ag-hard",
    "warehouse/large-8ag", "warehouse/large-8ag-easy", "warehouse/large-8ag-hard",
]

TrafficName = Literal[
    "traffic/junction-easy", "traffic/junction-medium", "traffic/junction-hard",
]

# fmt: on

EnvName = Literal[
    ParticleName,
    MatrixName,
    ProbeName,
    CoopName,
    ForagingName,
    SkirmishName,
    BoardName,
    SparseName,
    OvercookedName,
    WarehouseName,
    TrafficName,
]


class NetworkKeys(TypedDict, total=False):
    """Settings of the network that acts."""

    network: str | Code | None
    """Layers of all networks but mixers. null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`.
    `attention` over the entities that an agent observes, for any number of agents. `graph`, `commnet`, `ic3net`,
    `tarmac`: agents exchange messages, so that execution is centralized. Or your own factory of torch modules
    package.module:name, called as name(input_size, role=, part=).
    """
    network_edges: Literal["full", "radius", "given"]
    """Agents that hear each other, in networks that exchange messages and in those of your own that see the team:
    all (full), those within `network_radius` (radius), or those that the environment declares in its
    observations (given).
    """
    network_radius: float | None
    """Distance up to which agents hear each other, in the unit of the positions that agents observe."""


class SharingKeys(TypedDict, total=False):
    """Settings of recurrent layers and of shared parameters."""

    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer."""
    share_params: Literal["role", "all", "none"]
    """Agents that share parameters: those of a role (role), all agents of the team, distinguished by their id
    (all), or none.
    """


class CriticNetworkKeys(TypedDict, total=False):
    """Settings of the network of a critic."""

    critic_hidden_sizes: Sequence[int] | None
    """Units of the critic's hidden layers; null: `hidden_sizes`."""
    critic_agent_id: bool | None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and
    MASAC, and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    critic_network: str | Code | None
    """Layers of the critic, as `network`; `mlp`: hidden layers; null: `network`. A critic of the whole team reads
    all agents by any of the networks that see entities or the team.
    """


class ClipKeys(TypedDict, total=False):
    """Settings of updates that clip the policy ratio."""

    critic_lr: float | None
    """Learning rate of the critic; null: `lr`."""
    clip_eps: float
    """Clip range of the policy ratio."""
    target_kl: float | None
    """Estimated KL divergence from the old policy at which an update stops; null: never."""


class LearnerKeys(TypedDict, total=False):
    """Settings that every learner has."""

    rollout_length: int
    """Steps per environment between updates, including the reset step after each episode."""
    lr: float
    """Learning rate of the optimizer."""
    lr_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the learning rates, from their value to `lr_end` times their value over the run."""
    lr_end: float
    """Final learning rates as a fraction of their initial values."""
    bootstrap_at_limit: bool | None
    """Add the value of the final observation to returns that a step limit ends; false: returns end there, too.
    null: false where values read the time left, see `value_time_left`, and the environment has a known limit.
    """
    value_time_left: bool | None
    """Critics, and mixers of Q-values, also read the fraction of the step limit that is left; null: where returns
    end at the limit. Otherwise states that look late in an episode seem better or worse than they are.
    """
    max_grad_norm: float | None
    """Maximum gradient norm, applied to each network separately; null: no clipping."""
    max_grad_value: float | None
    """Maximum absolute value of each entry of a gradient, applied before `max_grad_norm`; null: no limit."""
    optimizer: Literal["adam", "radam"]
    """Optimizer: Adam, or RAdam (radam), which rectifies the size of its first steps."""
    adam_eps: float
    """Epsilon of the optimizer."""
    weight_decay: float
    """Weight decay of the optimizer."""
    hidden_sizes: Sequence[int]
    """Units of the hidden layers of the network that acts."""
    network_heads: int
    """Attention heads; they divide the units of the last hidden layer."""
    network_rounds: int | None
    """Layers of attention, or rounds of messages per timestep; null: 1, or 2 of tarmac."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"]
    """Activation after each hidden layer."""
    init: Literal["orthogonal", "xavier"]
    """Initialization of linear layers: orthogonal, with a small gain in the actor's output layer, or Xavier normal
    for all layers, which starts from a policy far from uniform. Mixers and MA-POCA's critic have an
    initialization of their own.
    """
    rnn_size: int
    """Units of the recurrent layer."""
    sequence_length: int | None
    """Timesteps per training sequence of a recurrent network; null: the rollout length."""
    normalize_obs: bool
    """Normalize observations by their running mean and standard deviation."""


class MinibatchKeys(LearnerKeys, total=False):
    """Settings of learners that make passes over the minibatches of each rollout."""

    epochs: int
    """Passes over each rollout."""
    num_minibatches: int | None
    """Minibatches per pass. Each is one gradient step, or one of the actor if the critic has steps of its own.
    null: 4, or one per sequence if a rollout has fewer.
    """


class OnPolicyKeys(MinibatchKeys, total=False):
    """Settings shared by on-policy learners of a policy and a critic."""

    hidden_sizes: Sequence[int]
    """Units of the actor's hidden layers."""
    entropy_coef: float
    """Initial weight of the entropy bonus."""
    entropy_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the entropy bonus, from its initial weight to `entropy_end` times that weight over the run."""
    entropy_end: float
    """Final weight of the entropy bonus as a fraction of the initial weight."""
    normalize_advantage: bool
    """Normalize advantages over all valid entries that they are computed for, a rollout or a batch of sequences."""


class COMAKeys(OnPolicyKeys, NetworkKeys, CriticNetworkKeys, total=False):
    """Settings of COMA."""

    lr_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the actor's learning rate, from `lr` to `lr_end` times `lr` over the run."""
    lr_end: float
    """Final learning rate of the actor as a fraction of the initial one."""
    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer of the actor; the critic has none."""
    sequence_length: int | None
    """Timesteps per sequence: traces of returns and recurrent networks do not extend over its ends; null: the
    rollout length.
    """
    share_params: Literal["role", "all", "none"]
    """Agents that share parameters: those of a role (role), all agents of the team, distinguished by their id
    (all), or none.
    """
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    critic_lr: float | None
    """Learning rate of the critic; null: `lr`."""
    normalize_advantage: bool
    """Normalize advantages over the valid entries of a minibatch."""
    critic: Literal["own", "joint", "state", "joint_state", "global"]
    """Input of the critic besides the agent's own observation and the actions of the others: nothing (own), the
    joint observation of the team, the environment's state, both of these, or observations and actions of all
    teams (global).
    """
    critic_last_action: bool
    """The critic reads the previous actions of all agents of the team."""
    obs_last_action: bool
    """The actor reads the previous action of its agent."""
    batch_size: int | None
    """Sequences per minibatch, drawn without replacement for each; null: each pass partitions the rollout's."""
    critic_time_chunks: int
    """Chunks of time per minibatch, from the last to the first, each one gradient step of the critic. Advantages
    use the values before the step, see `updated_advantages`. Surplus timesteps go to the latest chunks; at most
    one chunk per timestep.
    """
    critic_loss_mask: Literal["team", "agent"]
    """Timesteps of an agent that the critic's loss includes: those in which anybody of the team acts (team, as
    PyMARL), or those in which the agent itself acts (agent, as XuanCe's feed-forward learner). They differ where
    agents die: returns of an agent continue with its team (team), or end at its own death (agent).
    """
    updated_advantages: bool
    """Compute advantages with the critic after its steps on the minibatch, as XuanCe with MindSpore; false: with
    its values before, as XuanCe with PyTorch.
    """
    critic_lr_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the critic's learning rate, down to `critic_lr_end` times its value over the run."""
    critic_lr_end: float
    """Final learning rate of the critic as a fraction of the initial one."""
    tau: float
    """Fraction of the soft update of the target critic."""
    target_update_interval: int | None
    """Gradient steps of the critic between hard updates of its target; null: a soft update after each step."""
    epsilon_start: float
    """Initial fraction of uniform exploration that is mixed into the policy."""
    epsilon_end: float
    """Final fraction of uniform exploration."""
    epsilon_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the fraction from `epsilon_start` to `epsilon_end`."""
    epsilon_decay_steps: Count | None
    """Environment steps from `epsilon_start` to `epsilon_end`; null: the whole run."""
    common_reward: bool
    """Give every agent the mean reward of the team; false: its own plus that of its group."""


class COMASettings(COMAKeys, total=False):
    """Settings of coma, coma/original."""

    name: Literal["coma", "coma/original"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    td_lambda: float
    """Lambda of the critic's TD(lambda) targets."""


class ScaledRewardKeys(LearnerKeys, NetworkKeys, SharingKeys, total=False):
    """Settings of learners that scale rewards."""

    common_reward: bool
    """Each agent receives the mean of its team's rewards."""
    reward_scale: Literal["none", "rms", "standardize"]
    """Divide rewards by their running root mean square (rms), or subtract their running mean and divide by their
    standard deviation (standardize), which changes the optimal policy where episodes differ in length.
    """


class OffPolicyKeys(ScaledRewardKeys, total=False):
    """Settings that off-policy learners share."""

    gradient_steps: int | None
    """Gradient steps after each rollout; null: by `steps`, one per 64 environment steps of the rollout, or up to
    one per 4 in runs so short that they would take fewer than 5,000; at least one.
    """
    batch_size: int | None
    """Sequences per gradient step; a feed-forward network of Q-learning or DDPG learns from the first timestep of
    each. null: 256, or 32 for recurrent networks.
    """
    buffer_size: Count
    """Capacity of the replay buffer in environment steps."""
    buffer_storage: Literal["device", "cpu", "disk"]
    """Location of the replay buffer: the networks' device, the host's memory (cpu), or memory-mapped files (disk)."""
    learning_starts: Count
    """Environment steps before the first update."""
    priority_alpha: float
    """Exponent of the priorities by which sequences are sampled; 0 samples uniformly."""
    priority_beta: float
    """Initial exponent of the importance weights; it increases linearly to 1 over the run."""
    tau: float
    """Fraction of the online network in each soft update of the target networks."""
    target_update_interval: int | None
    """Gradient steps between hard updates of the target networks; null: a soft update after each gradient step."""
    burn_in: int
    """Timesteps before the training sequence that only warm up the hidden state of a recurrent network."""
    sequence_start: Literal["auto", "episode", "rollout"]
    """First timestep of training sequences of recurrent networks: that of an episode, with a zero hidden state, or
    that of a rollout, with the hidden state of the policy that collected it. auto: episode if no episode is
    longer than a sequence, else rollout.
    """


class DDPGKeys(OffPolicyKeys, CriticNetworkKeys, total=False):
    """Settings of DDPG, MADDPG, TD3 and MATD3."""

    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    n_step: int | None
    """Rewards per target before it bootstraps; null: 3 without a recurrent layer where the step limit is 50 or
    more, or unknown; else 1.
    """
    critic: Literal["own", "joint", "state", "joint_state", "global"]
    """Input of the critic: the agent's own observation and action (own), or the actions of the whole team with its
    joint observation (joint), with the environment's state (state), or with both (joint_state), or observations
    and actions of all teams (global).
    """
    share_critic: bool | None
    """Use one network for a centralized critic, with an output per agent, or a single one if `common_reward` is
    set. False: a network per agent; null: true unless `share_params` is none.
    """
    twin_critics: bool
    """Use two critics; targets take the smaller of their values."""
    policy_delay: int
    """Gradient steps of the critic per gradient step of the actor and soft update of the target networks. Hard
    updates are counted in gradient steps of the critic.
    """
    target_noise: float
    """Standard deviation of the noise on continuous target actions."""
    target_noise_clip: float
    """Maximum absolute value of that noise."""
    other_actions: Literal["replay", "current"]
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current actors.
    Actions of other teams are always those in the replay buffer.
    """
    next_action_policy: Literal["target", "online"]
    """Networks that choose the next actions of targets: the target actors or the online actors."""
    gumbel_temperature: float
    """Temperature of the Gumbel-softmax for the gradient of discrete actions."""
    logit_penalty: float
    """Coefficient of the mean squared logit in the actor's loss."""
    noise: Literal["gaussian", "ornstein_uhlenbeck"]
    """Exploration noise on continuous actions: independent per timestep, or an Ornstein-Uhlenbeck process."""
    noise_std: float
    """Initial standard deviation of Gaussian noise, or of the increments of Ornstein-Uhlenbeck noise; actions range
    from -1 to 1.
    """
    noise_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the noise, from its initial standard deviation to `noise_end` times it over the run."""
    noise_end: float
    """Final noise as a fraction of the initial one."""
    noise_theta: float
    """Mean reversion of Ornstein-Uhlenbeck noise per step."""
    random_steps: Count
    """Environment steps at the start with uniformly random actions."""
    critic_lr: float | None
    """Learning rate of the critic; null: that of the actor."""


class DDPGSettings(DDPGKeys, total=False):
    """Settings of ddpg, maddpg, maddpg/original, matd3, td3."""

    name: Literal["ddpg", "maddpg", "maddpg/original", "matd3", "td3"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """


class MixerKeys(LearnerKeys, NetworkKeys, SharingKeys, total=False):
    """Settings of mixers."""

    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    mixer_input: Literal["auto", "state", "joint"]
    """Input of the mixer's hypernetworks: the environment's state, or the joint observation of the team. auto: the
    state if there is one.
    """
    mixing_embed_dim: int
    """Width of the mixing layer."""
    hypernet_embed_dim: int
    """Hidden units of the mixer's hypernetworks, if they have a hidden layer, see `hypernet_layers`."""
    hypernet_layers: Literal[1, 2]
    """Layers of QMIX's hypernetworks: a hidden and a linear one (2), or a single linear one (1)."""


class TeamQKeys(MixerKeys, ScaledRewardKeys, total=False):
    """Settings of learners of Q-values: mixers, and epsilon-greedy exploration."""

    mixer: Literal["none", "vdn", "qmix", "qplex", "qfix_sum", "qfix_mono", "qfix_lin"] | str | Code
    """Mixer of the agents' Q-values: none (independent learners), vdn, qmix, qplex, qfix_sum, qfix_mono or
    qfix_lin, or your own class of a torch module package.module:Class, called as Class(agents, state_size,
    embed_dim=).
    """
    qfix_additive: bool
    """QFIX adds to the mixer that it fixes, from which alone the agents learn (Q+FIX); false: the weighted
    advantage replaces this mixer's Q.
    """
    obs_last_action: bool
    """Append the agent's last action to the input of its network; requires a recurrent layer."""
    epsilon_start: float
    """Initial probability of a random action."""
    epsilon_end: float
    """Final probability of a random action."""
    epsilon_decay_steps: Count | None
    """Environment steps over which epsilon decays; null: a fifth of the run."""
    epsilon_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of epsilon."""
    output_gain: float
    """Gain of the orthogonal initialization of the output layer. A small one lets Q-values start near 0, and not
    far from all returns.
    """
    huber_delta: float | None
    """Error beyond which the loss is linear; null: squared error."""


class QLearningKeys(OffPolicyKeys, TeamQKeys, total=False):
    """Settings of DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX."""

    gamma: float | None
    """Discount factor per step; null: 1 - 2 / limit, a horizon of half an episode, between 0.9 and 0.99, or 0.99
    without a known step limit.
    """
    layer_norm: bool | Literal["hidden"] | None
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden). null: hidden without a recurrent layer where the step limit
    is 50 or more, or unknown; else false.
    """
    n_step: int | None
    """Rewards per target before it bootstraps; null: 3 without a recurrent layer where the step limit is 50 or
    more, or unknown; else 1.
    """
    weighting: Literal["none", "optimistic", "central"]
    """Weighted QMIX: reduces the loss of joint actions that are not underestimated to `weighting_alpha`, by the
    optimistic (OW) or the centrally weighted (CW) rule.
    """
    weighting_alpha: float
    """Weight of those joint actions."""
    double_q: bool
    """Select the next action by the online network and evaluate it by the target network."""
    td_lambda: float | None
    """Lambda of TD(lambda) targets along a sequence, which has `n_step` steps without recurrent layer; null: n-step
    targets.
    """


class QLearningSettings(QLearningKeys, total=False):
    """Settings of ddqn, iql, qfix, qmix, qplex, vdn, wqmix."""

    name: Literal["ddqn", "iql", "qfix", "qmix", "qplex", "vdn", "wqmix"]
    """Algorithm."""


class ClippedKeys(OnPolicyKeys, total=False):
    """Settings shared by learners that clip the policy ratio and the value."""

    value_coef: float
    """Weight of the value loss."""
    value_clip_eps: float | None
    """Clip range of the value around its old value, on the normalized scale; null: no clipping."""
    huber_delta: float | None
    """Error above which the value loss is linear (Huber loss); null: squared error."""
    normalize_value: bool
    """Learn values that are normalized by the moving mean and standard deviation of the returns."""
    value_norm_decay: float
    """Decay of the moving return statistics."""
    state_dependent_std: bool
    """The standard deviation of continuous actions is an output of the actor; false: a learned parameter."""
    init_std: float
    """Initial standard deviation of continuous actions, whose range has length 2."""


class PPOKeys(ClippedKeys, total=False):
    """Settings of PPO, IPPO and MAPPO."""

    gae_lambda: float
    """Lambda of generalized advantage estimation."""
    entropy_decay: float | None
    """Factor of the entropy bonus per update, down to `entropy_end` times its initial weight; replaces the
    schedule.
    """
    common_reward: bool
    """Give every agent the mean reward of the team."""


class EncoderKeys(PPOKeys, ClipKeys, total=False):
    """Settings of MAT and MAT-Dec."""

    share_params: Literal["role", "all", "none"]
    """Agents that share parameters: those of a role (role), all agents of the team, distinguished by their id
    (all), or none.
    """
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the input of the encoder, and of actors; null: of the encoder, and of actors
    only with share_params=all.
    """
    critic_agent_id: bool | None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and
    MASAC, and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    embedding_size: int
    """Features of an agent and of an action in encoder and decoder."""
    num_blocks: int
    """Layers of the encoder, and of the decoder."""
    num_heads: int
    """Attention heads; they divide `embedding_size`."""


class MATKeys(EncoderKeys, total=False):
    """Settings of MAT."""

    network_radius: float | None
    """Distance up to which agents hear each other, in the unit of the positions that agents observe."""
    agent_order: Literal["fixed", "random"]
    """Order in which agents decide: that of the team (fixed), or a new one for each rollout (random). Agents of a
    role are ordered among themselves.
    """


class SableKeys(MATKeys, total=False):
    """Settings of Sable."""

    sequence_length: int | None
    """Timesteps per training sequence; null: the rollout length."""
    num_minibatches: int | None
    """Minibatches per pass, each of which is a gradient step. null: 2, or one per sequence if a rollout has fewer."""
    num_heads: int
    """Heads of each retention, with decays of their own; they divide `embedding_size`."""
    memory: bool
    """Keep what the team observed and did over the timesteps of an episode; false: retention over agents only."""
    decay_scale: float
    """Factor of the decays of the memory per timestep, which are between 1 - 1/32 and 1 - 1/512."""


class SableSettings(SableKeys, total=False):
    """Settings of ff_sable, sable."""

    name: Literal["ff_sable", "sable"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    network: Literal["retention"]
    """Layers of the network: retention over agents and timesteps."""
    network_edges: Literal["full"]
    """Agents that read each other: all."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    rnn: Literal["none"]
    """Recurrent layer: none, as retention has a memory of its own."""
    critic_hidden_sizes: None
    """Units of the critic's hidden layers: always `embedding_size`."""
    critic_network: None
    """Layers of the critic: those of the policy's encoder."""
    critic: Literal["joint"]
    """Input of the critic: the observations of the whole team, which the encoder reads."""


class FrozenSettings(TypedDict, total=False):
    """Settings of frozen."""

    name: Literal["frozen"]
    """Algorithm."""
    run: str | os.PathLike[str] | None
    """Folder of the run that the policy comes from."""
    team: str | None
    """Name of the team in that run; null: the same name."""
    checkpoint: str
    """Checkpoint of that run: auto (the team's best), best, best:TEAM, last, or a number of steps, which takes the
    nearest one at or below it.
    """
    rollout_length: int
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class HAPPOKeys(PPOKeys, NetworkKeys, total=False):
    """Settings of HAPPO and HAA2C."""

    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer."""
    share_params: Literal["role", "all", "none"]
    """Agents have networks of their own (none), since the update of one must leave the others' policies unchanged."""
    critic_hidden_sizes: Sequence[int] | None
    """Units of the critic's hidden layers; null: `hidden_sizes`."""
    critic_network: str | Code | None
    """Layers of the critic, as `network`; `mlp`: hidden layers; null: `network`. A critic of the whole team reads
    all agents by any of the networks that see entities or the team.
    """
    common_reward: bool
    """Agents learn from the mean reward of the team, for which improvement is guaranteed; false: from their own."""


class HAPPOSettings(HAPPOKeys, ClipKeys, total=False):
    """Settings of haa2c, happo."""

    name: Literal["haa2c", "happo"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic: Literal["joint", "state", "joint_state", "global"]
    """Input of the critic: the joint observation of the team, the environment's state, both (joint_state), or the
    observations of all teams (global).
    """


class SACKeys(OffPolicyKeys, CriticNetworkKeys, total=False):
    """Settings of SAC and MASAC."""

    critic_lr: float | None
    """Learning rate of the critics; null: that of the actor."""
    temperature: float
    """Initial coefficient of the entropy, in reward per nat."""
    learn_temperature: bool
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each role."""
    temperature_lr: float | None
    """Learning rate of the temperature; null: that of the actor."""
    target_entropy: float
    """Target entropy per continuous action in [-1, 1], in nats; that of the uniform distribution is 0.69."""
    target_entropy_scale: float
    """Target entropy of discrete actions, as a fraction of that of the uniform distribution over available choices."""
    random_steps: Count
    """Environment steps at the start, including reset steps, with uniformly random actions."""


class HASACKeys(SACKeys, total=False):
    """Settings of HASAC."""

    share_params: Literal["role", "all", "none"]
    """Agents have networks of their own (none), since the update of one must leave the others' policies unchanged."""
    critic_agent_id: bool | None
    """Append the agent's one-hot id to the input of the critics, whose network the agents of a role share; null:
    true.
    """
    common_reward: bool
    """Agents learn from the mean reward of the team, for which improvement is guaranteed; false: from their own."""
    learn_temperature: bool
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each agent."""


class HASACSettings(HASACKeys, total=False):
    """Settings of hasac."""

    name: Literal["hasac"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    n_step: int
    """Rewards per target before it bootstraps. Sequences of feed-forward networks have this length; their later
    timesteps have shorter targets.
    """
    critic: Literal["joint", "state", "joint_state", "global"]
    """Input of the critics besides the agent's own observation and the actions of the team: the joint observation
    (joint), the environment's state (state), or both (joint_state), or observations and actions of all teams
    (global).
    """


class HATRPOKeys(HAPPOKeys, total=False):
    """Settings of HATRPO."""

    lr: float
    """Learning rate of the critic. The size of the agents' steps follows from `max_kl`."""
    epochs: int
    """Passes of the critic over each rollout. Agents take one step on all of it."""
    num_minibatches: int | None
    """Minibatches per pass of the critic; null: 4, or one per sequence if a rollout has fewer."""
    max_kl: float
    """Largest mean KL divergence in nats of an agent's policy from the one before its step."""
    cg_iterations: int
    """Iterations of conjugate gradients, each a product with the Fisher information."""
    cg_damping: float
    """Added to the diagonal of the Fisher information."""
    line_search_steps: int
    """Step sizes that the line search tries before it keeps the old policy."""
    line_search_decay: float
    """Each step size that is tried as a fraction of the one before."""
    accept_ratio: float
    """Smallest rise of the surrogate that is accepted, as a fraction of what its gradient predicts."""


class HATRPOSettings(HATRPOKeys, total=False):
    """Settings of hatrpo."""

    name: Literal["hatrpo"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic: Literal["joint", "state", "joint_state", "global"]
    """Input of the critic: the joint observation of the team, the environment's state, both (joint_state), or the
    observations of all teams (global).
    """


class PPOSettings(PPOKeys, NetworkKeys, SharingKeys, CriticNetworkKeys, ClipKeys, total=False):
    """Settings of ia2c, ippo, ippo/yardstick, maa2c, mappo, mappo/original, mappo/original_tag, ppo."""

    name: Literal["ia2c", "ippo", "ippo/yardstick", "maa2c", "mappo", "mappo/original", "mappo/original_tag", "ppo"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""
    critic: Literal["own", "joint", "state", "joint_state", "global"]
    """Input of the critic: the agent's own observation, the joint observation of the team, the environment's state,
    joint observation and state, or the observations of all teams (global).
    """


class MAGPOKeys(EncoderKeys, total=False):
    """Settings of MAGPO."""

    network: str | Code | None
    """Layers of the learner. null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`. `attention`
    over the entities that an agent observes. Or your own factory of torch modules package.module:name, called as
    name(input_size, role=, part=). Networks whose agents exchange messages are refused.
    """
    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer of the learner. With one, the guider has a memory, too, see `guider`."""
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the input of the guider and of the learner; null: of the guider, and of
    learners whose agents share parameters, except with network=attention.
    """
    clip_eps: float
    """Clip range of both policy ratios, of guider and learner to the guider that collected the rollout."""
    num_heads: int
    """Heads of attention or retention of the guider; they divide `embedding_size`."""
    delta: float
    """Factor by which the guider's probability of an action may differ from the learner's before it is pulled back."""
    learner_coef: float
    """Weight of PPO's loss in the learner's loss, next to its divergence from the guider; 0: it only imitates."""
    guider: Literal["mat", "sable"] | None
    """Network of the guider: a transformer over agents (mat), or retention over agents, and over the timesteps of
    an episode if the learner is recurrent (sable). null: mat, or sable if the learner is recurrent, since mat
    remembers nothing.
    """
    agent_order: Literal["fixed", "random"]
    """Order in which agents decide under the guider: that of the team (fixed), or a new one for each rollout
    (random). Agents of a role are ordered among themselves.
    """
    decay_scale: float
    """Factor of the decays of the guider's memory per timestep, which are between 1 - 1/32 and 1 - 1/512."""


class MAGPOSettings(MAGPOKeys, total=False):
    """Settings of magpo."""

    name: Literal["magpo"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    network_edges: Literal["full"]
    """Agents that the guider reads: all."""
    network_radius: None
    """Distance up to which agents hear each other: none, since the guider reads all of them."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic_hidden_sizes: None
    """Units of the critic's hidden layers: always `embedding_size`."""
    critic_network: None
    """Layers of the critic: always a transformer."""
    critic: Literal["joint"]
    """Input of the critic: the observations of the whole team, which the encoder reads."""


class SACSettings(SACKeys, total=False):
    """Settings of masac, sac."""

    name: Literal["masac", "sac"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    n_step: int
    """Rewards per target before it bootstraps. Sequences of feed-forward networks have this length; their later
    timesteps have shorter targets.
    """
    critic: Literal["own", "joint", "state", "joint_state", "global"]
    """Input of the critics besides the agent's own observation and action: nothing (own), or the other agents'
    actions and the joint observation (joint), the environment's state (state), or both (joint_state), or
    observations and actions of all teams (global).
    """
    other_actions: Literal["replay", "current"]
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current
    policies. Actions of other teams are always those in the replay buffer.
    """


class MATSettings(MATKeys, SharingKeys, total=False):
    """Settings of mat."""

    name: Literal["mat"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    network: Literal["transformer"]
    """Layers of the network: an encoder and a decoder over agents."""
    network_edges: Literal["full"]
    """Agents that attend to each other: all."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic_hidden_sizes: None
    """Units of the critic's hidden layers: always `embedding_size`."""
    critic_network: None
    """Layers of the critic: always a transformer."""
    critic: Literal["joint"]
    """Input of the critic: the observations of the whole team, which the encoder reads."""


class MATDecSettings(EncoderKeys, NetworkKeys, SharingKeys, total=False):
    """Settings of mat_dec."""

    name: Literal["mat_dec"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic_hidden_sizes: None
    """Units of the critic's hidden layers: always `embedding_size`."""
    critic_network: None
    """Layers of the critic: always a transformer."""
    critic: Literal["joint"]
    """Input of the critic: the observations of the whole team, which the encoder reads."""


class PACKeys(PPOKeys, NetworkKeys, SharingKeys, CriticNetworkKeys, ClipKeys, total=False):
    """Settings of Pareto-AC."""

    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""
    gae_lambda: float
    """Lambda of the targets of both critics."""
    return_steps: int | None
    """Rewards per target before it bootstraps; null: lambda-returns, see `gae_lambda`."""
    tau: float
    """Fraction of the soft update of the target critic."""
    target_update_interval: int | None
    """Gradient steps between hard updates of the target critic; null: a soft update after each step."""
    tie_break: float
    """Weight of the log-probability of the others' actions in the choice of their best response, in standard
    deviations of returns where values are normalized: among nearly equal ones, likely responses are expected. 0:
    as published.
    """
    entropy_fraction: float
    """Fraction of the run at which the entropy bonus reaches its final weight."""


class PACSettings(PACKeys, total=False):
    """Settings of pac."""

    name: Literal["pac"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    critic: Literal["joint", "state", "joint_state"]
    """Input of the critics: the joint observation of the team, the environment's state, or both."""


class POCAKeys(ClippedKeys, NetworkKeys, SharingKeys, total=False):
    """Settings of MA-POCA."""

    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""
    critic_hidden_sizes: Sequence[int] | None
    """Units of the critic's hidden layers after the attention; null: `hidden_sizes`."""
    critic_agent_id: bool | None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and
    MASAC, and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    critic_network: str | Code | None
    """Layers of the critic, as `network`; `mlp`: hidden layers; null: `network`. A critic of the whole team reads
    all agents by any of the networks that see entities or the team.
    """
    critic_lr: float | None
    """Learning rate of the critic; null: `lr`."""
    clip_eps: float
    """Initial clip range of the policy ratio."""
    value_coef: float
    """Weight of the value loss and the baseline loss together."""
    extrinsic_weight: float
    """Weight of the environment's reward among the reward signals, multiplied by `rewards.extrinsic.weight`."""
    signal_returns: Literal["member", "group"]
    """Returns of reward signals besides the environment's: of each member's own rewards, as in ML-Agents (member),
    or of their sum over the group (group).
    """
    member_end: Literal["group", "member"]
    """Trace of the return of a member that ends before its group: it continues through the group's later steps
    (group), or ends with the member and bootstraps from the group's next value, as in ML-Agents (member).
    """
    clip_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the clip range, from `clip_eps` to `clip_end` times `clip_eps` over the run."""
    clip_end: float
    """Final clip range as a fraction of the initial one."""
    baseline_coef: float
    """Weight of the baseline loss relative to the value loss."""
    embedding_size: int
    """Size of an agent's embedding in the critic's attention; a multiple of its 4 heads."""


class POCASettings(POCAKeys, total=False):
    """Settings of poca."""

    name: Literal["poca"]
    """Algorithm."""
    gamma: float
    """Discount factor per step of the environment's reward."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden). The attention has its own in any case.
    """
    td_lambda: float
    """Lambda of the returns."""


class PQNKeys(MinibatchKeys, TeamQKeys, total=False):
    """Settings of PQN, PQN-VDN and PQN-QMIX."""

    gamma: float | None
    """Discount factor per step; null: 1 - 2 / limit, a horizon of half an episode, between 0.9 and 0.99, or 0.99
    without a known step limit.
    """
    num_minibatches: int | None
    """Minibatches per pass, each of which is a gradient step. null: 16, or one per sequence if a rollout has fewer."""
    center_values: bool
    """Learn values relative to the return of an average step if it is negative, so that states that are no longer
    visited look average; false: relative to 0, beside which they look good.
    """


class PQNSettings(PQNKeys, total=False):
    """Settings of pqn, pqn_qmix, pqn_vdn."""

    name: Literal["pqn", "pqn_qmix", "pqn_vdn"]
    """Algorithm."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    td_lambda: float
    """Lambda of the returns."""


class RandomSettings(TypedDict, total=False):
    """Settings of random."""

    name: Literal["random"]
    """Algorithm."""
    rollout_length: int
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class ScriptedSettings(TypedDict, total=False):
    """Settings of scripted."""

    name: Literal["scripted"]
    """Algorithm."""
    script: str | None
    """Name of a script of the environment (see `coterie list envs`), or your own as package.module:make; null: the
    first script of each role.
    """
    rollout_length: int
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class SEACKeys(PPOKeys, NetworkKeys, CriticNetworkKeys, ClipKeys, total=False):
    """Settings of SEAC."""

    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer."""
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""
    sharing_coef: float
    """Weight lambda of the loss on each other agent's experience relative to the agent's own; 0: IA2C."""


class SEACSettings(SEACKeys, total=False):
    """Settings of seac."""

    name: Literal["seac"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    share_params: Literal["none"]
    """Agents share experience, not parameters: networks that are one and the same learn nothing from each other."""
    critic: Literal["own"]
    """Input of the critics: the agent's own observation."""


class VDACKeys(PPOKeys, MixerKeys, CriticNetworkKeys, ClipKeys, total=False):
    """Settings of VDAC."""

    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""


class VDACSettings(VDACKeys, total=False):
    """Settings of vdac."""

    name: Literal["vdac"]
    """Algorithm."""
    gamma: float
    """Discount factor per step."""
    layer_norm: bool | Literal["hidden"]
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to
    hidden layers, before their activation (hidden).
    """
    mixer: Literal["vdn", "qmix"] | str | Code
    """Mixer of the agents' values: vdn (VDAC-sum), qmix (VDAC-mix), or your own class of a torch module
    package.module:Class, called as Class(agents, state_size, embed_dim=).
    """
    critic: Literal["own"]
    """Input of the agents' critics: their own observations. The mixer reads the rest, see `mixer_input`."""


class ParticleSettings(TypedDict, total=False):
    """Settings of the environments particle/*."""

    name: ParticleName
    """Environment."""
    actions: Literal["discrete", "continuous"]
    """Type of the action spaces."""
    episode_limit: int | None
    """Maximum number of steps per episode; None for no limit."""
    terminate_at_limit: bool
    """Terminate episodes at the limit instead of truncating them."""
    dynamic_rescaling: bool
    """Zoom each picture out until all bodies are visible. Otherwise the view is fixed, and arrows point to others."""
    collectors: int
    """Number of collectors."""
    deposits: int
    """Number of deposits, one for each kind of treasure."""
    treasures: int
    """Number of treasures."""
    agents: int
    """Number of good agents, and of landmarks."""
    variant: Literal["mpe2", "openai"]
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""
    num_agent_neighbors: int | None
    """Number of nearest other agents to observe; None for all."""
    num_landmark_neighbors: int | None
    """Number of nearest landmarks to observe; None for all. Good agents always observe the goal."""
    shaping: float
    """Shaping reward for moving the ball from the center to a goal. The goal itself gives 1."""
    approach: float
    """Shaping reward per unit of distance by which the side's nearest player approaches the ball; opponents lose
    it.
    """
    terminate_on_success: bool
    """Terminate the episode when every agent is within 0.05 of its place."""
    local_ratio: float
    """Weight of the agent's own reward; the mean over both agents has the remaining weight."""
    landmarks: int | None
    """Number of landmarks; None for one per agent."""
    curriculum: bool
    """Do not penalize collisions before stage 1 of the curriculum."""
    curriculum_stage: int
    """Initial stage of the curriculum."""
    good: int
    """Number of prey."""
    adversaries: int
    """Number of pursuers."""
    obstacles: int
    """Number of obstacles."""
    prey_speed: float
    """Factor on the speed limit and thrust of the prey, in addition to the curriculum."""
    food: int
    """Number of food sources."""
    forests: int
    """Number of forests."""


class MatrixSettings(TypedDict, total=False):
    """Settings of the environments matrix/*."""

    name: MatrixName
    """Environment."""
    episode_limit: int
    """Rounds per episode."""
    terminate_at_limit: bool | None
    """Terminate episodes after the last round instead of truncating them; None for True in one-round episodes only."""
    last_action: bool
    """Observe the choices of all players in the previous round; zeros in the first."""
    favorite: float
    """Payoff for meeting at one's favorite place."""
    other: float
    """Payoff for meeting at the other player's favorite place; each player alone gets 0."""
    agents: int
    """Number of agents."""
    actions: int
    """Number of choices of each agent."""
    graded: bool
    """Pay (a + 1) / actions instead of 1 for agreeing on choice a (from 0), so that only the last one is best."""
    value: float
    """Value of the resource; two doves share it."""
    cost: float
    """Cost of losing a fight between two hawks, which each loses with probability 1/2."""
    k: float
    """Payoff for choosing different ones of the two best joint actions."""
    temptation: float
    """Payoff for defecting alone."""
    reward: float
    """Payoff of each player if both cooperate."""
    punishment: float
    """Payoff of each player if both defect."""
    sucker: float
    """Payoff for cooperating alone."""
    stag: float
    """Payoff of each player if both hunt the stag; hunting it alone gives 0."""
    hare: float
    """Payoff for hunting the hare, whatever the other player does."""


class ProbeSettings(TypedDict, total=False):
    """Settings of the environments probe/*."""

    name: ProbeName
    """Environment."""
    reward: float
    """Reward of the only step."""
    blind: bool
    """Negative control: all observations are zero."""
    length: int
    """Steps per episode; the last one gives a reward of 1."""
    choices: int
    """Number of choices."""
    good: int
    """Choice with a reward of 1; the others give -1."""
    episode_limit: int
    """Steps after which an episode is truncated."""
    terminate_at_limit: bool
    """Negative control: report the limit as a termination."""
    delay: int
    """Steps between the cue and the question; with 0 the cue is still visible and no memory is needed."""
    cues: int
    """Number of cues, and of answers."""
    agents: int
    """Number of agents, and of choices of each."""
    lure: float
    """Immediate reward of agent 0 for staying."""
    target: float
    """Best action, within -2 to 2."""
    follow: bool
    """Draw the best action from -1 to 1 and show it in the observation, instead of `target`."""
    actions: Literal["discrete", "continuous"]
    """Type of the action: four choices, or a number in [-1, 1]."""
    size: int
    """Height and width of the image in pixels."""
    channels: int
    """Number of channels, which are equal."""


class CoopSettings(TypedDict, total=False):
    """Settings of the environments coop/*."""

    name: CoopName
    """Environment."""
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""
    agents: int
    """Number of agent slots; at least one is empty."""
    runners: int
    """Number of runners at any time."""
    batons: int
    """Number of batons, one after the other; the episode ends when the last one is taken."""
    size: int
    """Side length of the room in squares."""
    pace: int
    """Number of steps that the dragon needs per square."""
    cost: float
    """Individual penalty of an agent for meeting the dragon."""
    weights: Sequence[int]
    """Weight of each block: the number of agents needed to move it, and its reward."""
    sight: int | None
    """View range in squares along each axis; None: the whole room."""
    push: float
    """Group reward per unit of weight for every square that a block moves toward the goal, negative for squares
    away from it.
    """
    step_cost: float
    """Group penalty per step."""


class ForagingSettings(TypedDict, total=False):
    """Settings of the environments foraging/*."""

    name: ForagingName
    """Environment."""
    size: int
    """Side length of the field in squares."""
    players: int
    """Number of agents."""
    foods: int
    """Number of food items at the start; fewer if no square is left for them."""
    sight: int | None
    """View range of agents in squares along each axis; None: the whole field."""
    coop: bool
    """Give all food the highest level, which all of the three weakest agents have to collect together."""
    min_player_level: int
    """Lowest level of agents."""
    max_player_level: int
    """Highest level of agents."""
    min_food_level: int
    """Lowest level of food."""
    max_food_level: int | None
    """Highest level of food; None: the sum of the levels of the three weakest agents."""
    penalty: float
    """Subtracted from the reward of agents that fail to load food."""
    normalize_reward: bool
    """Scale rewards so that all food of an episode is worth 1 in total."""
    grid_observation: bool
    """Observe layers of the squares around the agent instead of lists of food and agents."""
    observe_agent_levels: bool
    """Observe the levels of agents."""
    action_mask: bool
    """Mask actions that have no effect: moves into food and off the field, and loading away from food."""
    version: Literal[2, 3]
    """Version of the package's tasks whose levels of food apply; 2: food has the highest level only with coop."""
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""


class SkirmishSettings(TypedDict, total=False):
    """Settings of the environments skirmish/*."""

    name: SkirmishName
    """Environment."""
    reward: Literal["shaped", "sparse"]
    """Team reward. shaped: damage dealt, plus 10 per killed enemy and 200 for winning, scaled so that a won battle
    earns 20; sparse: 1 for a won battle and -1 for a lost one.
    """
    enemy_focus: Literal["nearest", "weakest"]
    """Target choice of enemies: the nearest, or the weakest within reach."""
    enemy_damage: float
    """Factor on the damage dealt by enemies."""
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""


class BoardSettings(TypedDict, total=False):
    """Settings of the environments board/*."""

    name: BoardName
    """Environment."""
    rows: int
    """Number of rows of the board."""
    columns: int
    """Number of columns of the board."""
    connect: int
    """Number of stones in a row, column or diagonal that wins."""
    first: Literal["either", "always"]
    """Player that moves first: `either` chooses at random in every episode, `always` is the first player (red or
    cross).
    """


class SparseSettings(TypedDict, total=False):
    """Settings of the environments sparse/*."""

    name: SparseName
    """Environment."""
    rooms: int
    """Number of rooms from the start to the goal."""
    columns: int
    """Rooms per line; the next line is traversed in the opposite direction."""
    size: int
    """Side length of a room in squares."""
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""


class OvercookedSettings(TypedDict, total=False):
    """Settings of the environments overcooked/*."""

    name: OvercookedName
    """Environment."""
    layout: str | None
    """Drawing of another kitchen: `X` counter, `O` onions, `D` dishes, `P` pot, `S` serving window, `.` floor, `1`
    and `2` agents; rows separated by line breaks or `/`.
    """
    auto_cook: bool
    """Start cooking when the third onion is in the pot, the package's `old_dynamics`. Otherwise an agent with empty
    hands starts it by interacting, with one to three onions.
    """
    cook_time: int
    """Number of steps until a soup is ready."""
    delivery_reward: float
    """Reward of the team for serving a soup of three onions."""
    shaping: float
    """Factor on the following three rewards, which go to the agent itself."""
    pot_reward: float
    """Shaped reward for putting an onion into a pot."""
    dish_reward: float
    """Shaped reward for taking a dish from the dispenser when it is useful: no dish is on a counter, and agents
    hold fewer dishes than there are pots with a soup that is cooking, ready or not full.
    """
    soup_reward: float
    """Shaped reward for taking a soup from a pot."""
    random_positions: bool
    """Start on two random cells of the floor instead of the marked ones."""
    random_objects: float
    """Probability that a pot starts with onions, that these are cooking, and that an agent starts with an item."""
    observation_type: Literal["flattened", "image"]
    """26 layers of the kitchen, cell by cell as a vector, or the same numbers as an image [H, W, 26]. Images need
    at least five rows and columns.
    """
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""


class WarehouseSettings(TypedDict, total=False):
    """Settings of the environments warehouse/*."""

    name: WarehouseName
    """Environment."""
    agents: int
    """Number of agents."""
    shelf_rows: int
    """Number of rows of shelf blocks."""
    shelf_columns: int
    """Number of columns of shelf blocks, an odd number."""
    column_height: int
    """Height of a shelf block in cells."""
    layout: str | None
    """Drawing of the floor instead of shelf_rows, shelf_columns and column_height: `x` shelves, `.` highways, `g`
    goals; rows separated by line breaks or `/`.
    """
    request_queue_size: int | None
    """Number of requested shelves; None: as many as agents, twice as many in `-easy`, half as many in `-hard`."""
    sensor_range: int
    """Reach of the observed window around an agent in cells."""
    msg_bits: int
    """Number of bits that each agent sends per step to the agents that see it."""
    reward_type: Literal["individual", "global", "two_stage"]
    """Reward of a delivery: 1 for the agent, 1 for all agents, or 0.5 for the agent and 0.5 when it returns the
    shelf.
    """
    max_steps: int | None
    """Maximum number of steps before truncation; None: no limit."""
    max_inactivity_steps: int | None
    """Number of steps without a delivery after which the episode terminates; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""
    observation_type: Literal["flattened", "image", "image_dict"]
    """Content of observations: numbers of all cells of the window, layers of the window, or layers and the agent's
    own features as two sensors.
    """
    image_observation_layers: Sequence[
        Literal["shelves", "requests", "agents", "agent_direction", "agent_load", "goals", "accessible"]
    ]
    """Layers of image observations."""
    image_observation_directional: bool
    """Rotate image observations to the direction of the agent."""
    normalized_coordinates: bool
    """Observe the agent's place as a fraction of the floor instead of in cells."""
    load_reward: float
    """Additional reward for loading a requested shelf, taken back if it is unloaded before its delivery."""
    start_loaded: float
    """Probability that an agent on a highway starts with a requested shelf."""


class TrafficSettings(TypedDict, total=False):
    """Settings of the environments traffic/*."""

    name: TrafficName
    """Environment."""
    cars: int
    """Maximum number of cars at a time: the number of agents."""
    size: int
    """Side length of the grid in squares."""
    vision: int
    """View range of cars in squares along each axis; 0: the car's own square."""
    arrival_rate: float
    """Probability per step that a car arrives, at each of the places of arrival."""
    collision_penalty: float
    """Subtracted from the reward of every car that shares its square, in each step."""
    time_penalty: float
    """Subtracted from the reward of every car in each step, times the number of its steps so far."""
    observe_position: bool
    """Observe the car's position as two numbers and squares as road or not, instead of one-hot road squares."""
    episode_limit: int | None
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool
    """Treat the step limit as termination instead of truncation."""


class StreamSettings(TypedDict, total=False):
    """Weight and discount of a reward stream."""

    weight: float
    """Initial weight in the sum of rewards; 0 computes and logs the reward without training on it."""
    weight_schedule: Literal["constant", "linear"]
    """Schedule of the weight, from `weight` to `weight_end` times `weight` over the run."""
    weight_end: float
    """Final weight as a fraction of the initial one."""
    gamma: float | None
    """Discount factor per step. A different one requires an algorithm with a value estimate per reward. Default:
    the algorithm's.
    """


class ExtrinsicSettings(StreamSettings, total=False):
    """Settings of the environment's reward."""


class SignalSettings(StreamSettings, total=False):
    """Settings shared by all reward signals."""

    episodic: bool
    """End returns at the end of an episode or when an agent dies. If false, returns continue into the next episode,
    so that agents have no reason to avoid its end. Algorithms without a value estimate per reward always end
    returns.
    """
    normalize: bool
    """Divide the reward by the running standard deviation of its discounted returns."""


class TrainedSettings(SignalSettings, total=False):
    """Settings of reward signals that train networks."""

    lr: float
    """Adam's learning rate."""
    epochs: int
    """Passes over a rollout per update."""
    num_minibatches: int
    """Minibatches per epoch, each one gradient step."""
    max_grad_norm: float | None
    """Maximum gradient norm; null: no clipping."""
    hidden_sizes: Sequence[int]
    """Units of the hidden layers of each network."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"]
    """Activation after each hidden layer."""
    share_params: Literal["role", "all", "none"]
    """Agents that share parameters: those of a role (role), all agents of the team (all), or none."""
    normalize_obs: bool
    """Normalize vector observations by their running mean and standard deviation, and clip them to [-5, 5]."""


class LearnedSettings(TrainedSettings, total=False):
    """Settings of reward signals whose networks compute features of observations."""

    features: int
    """Number of features per observation."""


class IcmSettings(LearnedSettings, total=False):
    """Settings of the intrinsic curiosity module, see `coterie.rewards.icm`."""

    eta: float
    """Factor of the forward model's error in the reward."""
    beta: float
    """Weight of the forward model's loss; that of the inverse model is 1 - beta."""


class RndSettings(LearnedSettings, total=False):
    """Settings of random network distillation, see `coterie.rewards.rnd`."""


class GailSettings(TrainedSettings, total=False):
    """Settings of generative adversarial imitation learning, see `coterie.rewards.gail`."""

    demos: str | os.PathLike[str] | None
    """File of demonstrations (coterie record)."""
    reward: Literal["positive", "negative", "bounded"]
    """Reward as a function of D, the probability of being demonstrated: positive is -log(1 - D), which favors long
    episodes; negative is log D, which favors short episodes; bounded is 2 D - 1.
    """
    actions: bool
    """Input actions to the discriminator in addition to observations."""
    penalty: float
    """Weight of the gradient penalty, which keeps the norm of the discriminator's gradient close to 1; 0: no
    penalty.
    """


class RewardsSettings(TypedDict, total=False):
    """Rewards of a team. Signals are off unless they are configured."""

    extrinsic: ExtrinsicSettings
    """The environment's reward."""
    icm: IcmSettings | None
    """Curiosity: the error in predicting the outcome of an action. Enabled by setting any of its keys, or by {} for
    defaults.
    """
    rnd: RndSettings | None
    """Novelty: the error in predicting the output of a random network. Enabled by setting any of its keys, or by {}
    for defaults.
    """
    gail: GailSettings | None
    """Imitation: similarity to demonstrations. Enabled by setting any of its keys; requires `demos`."""


class ImitationSettings(TypedDict, total=False):
    """Behavior cloning of a team's policy on demonstrations: before the run, after each rollout, or both."""

    demos: str | os.PathLike[str] | None
    """File of demonstrations (coterie record); null: no behavior cloning."""
    steps: int
    """Gradient steps of pretraining, before the first rollout; 0: no pretraining."""
    epochs: float | None
    """Epochs of pretraining, i.e. passes over the demonstrations; replaces `steps`."""
    batch_size: int
    """Timesteps per gradient step. Recurrent policies use as many whole episodes as amount to this number, and at
    least one.
    """
    lr: float | None
    """Learning rate of Adam. Default: the algorithm's."""
    weight: float
    """Learning rate of the gradient steps after each rollout, as a multiple of `lr`; 0: no such steps."""
    gradient_steps: int
    """Gradient steps after each rollout."""
    weight_schedule: Literal["constant", "linear"]
    """Schedule of `weight` until `end_fraction`: constant, or a linear decay to 0."""
    end_fraction: float
    """Fraction of the run after which `weight` is 0."""
    fit_std: bool
    """Fit the standard deviation of Gaussian policies as well. If false, only the mean is fitted and exploration
    does not change. On demonstrations of a deterministic script the standard deviation decreases to its lower
    bound.
    """
    margin: float
    """Q-learning: margin by which the Q-value of the demonstrated action must exceed those of all other actions."""


class InitSettings(TypedDict, total=False):
    """Warm start: weights and normalizers of another run."""

    run: str | os.PathLike[str]
    """Folder of the run whose weights a new run starts with."""
    checkpoint: str
    """Checkpoint of that run: auto (the best, or an intact one), best, best:TEAM, last, or a number of steps, which
    takes the nearest checkpoint at or below it.
    """
    teams: Mapping[str, str | None]
    """Team of that run by team of the new one, e.g. {adversary: agent}; null: random weights. Default: the team of
    the same name, or the only one.
    """
    partial: bool
    """Take the layers of a policy that fit and initialize the others. Otherwise a policy that does not fit is an
    error.
    """
    optimizer: bool
    """Take the state of the optimizers too, such as Adam's moments."""


class SelfPlaySettings(TypedDict, total=False):
    """Self-play against past snapshots of the policy."""

    opponents: Literal["off", "latest", "uniform", "recency", "pfsp"]
    """Opponents of episodes: off disables self-play; latest is always the current policy; uniform draws any
    snapshot; recency draws snapshots with a probability proportional to their rank by age, the newest most
    often; pfsp (prioritized fictitious self-play) draws snapshots that are hard to beat more often.
    """
    snapshot_interval: Count | None
    """Environment steps between snapshots. Default: 1/20 of the run."""
    promotion_win_rate: float | None
    """Minimum win rate against the pool for a new snapshot, where a draw is half a win; null: no minimum."""
    window: int
    """Number of latest snapshots that opponents are drawn from."""
    latest_ratio: float
    """Fraction of episodes against the current policy; the others are against snapshots."""
    pfsp_exponent: float
    """Exponent of pfsp: probabilities are proportional to (1 - win rate)^exponent."""
    win_rate_episodes: Count
    """Episodes in the running mean of the win rate against an opponent, in which recent episodes have more weight."""
    sides: Literal["auto", "both", "first", "alternate"]
    """Sides that learn: both trains one policy, which plays the first side in every other environment and the
    second side in the rest; first trains one policy on the first side; alternate trains one policy per side, one
    after the other (see `alternate`); auto is both if the environment's sides are symmetric, and alternate
    otherwise.
    """
    rating_episodes: Count
    """Episodes against the pool that determine a snapshot's rating, rounded up to the same number in each
    evaluation environment.
    """


class AdvanceSettings(TypedDict, total=False):
    """Condition to advance to the next lesson or phase: a metric is past a threshold."""

    metric: str
    """Name of a logged metric, e.g. `rollout/return_mean` or `steps`; or `progress`, the fraction of the run that
    is complete.
    """
    above: float | None
    """Threshold that the metric must exceed."""
    below: float | None
    """Threshold that the metric must be less than."""
    smoothing: float
    """Weight of earlier values in an exponential moving average m <- smoothing m + (1 - smoothing) value, which is
    compared with the threshold.
    """
    window: int
    """Number of latest values whose mean is compared with the threshold, once that many are available."""
    patience: int
    """Consecutive values at which the mean must be past the threshold."""
    episodes: int
    """Minimum number of episodes in a lesson."""


class AlternateSettings(TypedDict, total=False):
    """Alternating training: in each phase some teams learn while the policies of the others are fixed."""

    every: Count | None
    """Environment steps per phase, or the most if `until` is set. null without `until`: all teams learn at the same
    time, or in self-play alternate in phases of 1/10 of the run.
    """
    until: AdvanceSettings | None
    """Condition that ends a phase: a logged metric passes a threshold, e.g. {metric: "eval/{team}/return_mean",
    above: 20}, where {team} is the first team that learns in the phase.
    """
    order: Sequence[str | Sequence[str]]
    """Team or teams that learn in each phase. Default: each team that learns, one after the other."""
    repeat: bool
    """Start again with the first phase after the last; otherwise the last phase lasts until the end of the run."""


class LessonSettings(TypedDict, total=False):
    """A lesson: parameters of the environment for part of the run."""

    name: str
    """Name of the lesson in the log."""
    parameters: Mapping[str, float | str | Mapping[str, Any]]
    """Parameters of the environment, each a value or a distribution. Others keep their values of earlier lessons."""
    advance: AdvanceSettings | None
    """Condition that ends the lesson. The last lesson has none."""


class CurriculumSettings(TypedDict, total=False):
    """A sequence of lessons."""

    lessons: Sequence[LessonSettings]
    """Lessons in order. Without lessons the parameters are those of `env` and `randomize`."""
    evaluate: Literal["current", "last"]
    """Lesson that evaluations use."""


class WorkersSettings(TypedDict, total=False):
    """Processes that step environments of external libraries. Coterie's built-in environments do not use them."""

    count: int
    """Worker processes for training, and as many again for evaluation; 0 steps all environments in the trainer's
    process. Results are bit-for-bit equal for any number.
    """
    kind: Literal["processes", "ray"]
    """Type of worker: local processes, or Ray actors on this machine or a cluster (requires the extra
    `coterie[ray]`).
    """
    address: str
    """Address of Ray: local starts an instance that ends with the trainer, auto connects to the one running on this
    machine, and host:port to the one at that address.
    """
    overlap: bool
    """Step one half of the environments while the policies act in the other, with `count` workers per half. Results
    are bit-for-bit equal for any number of workers, but may differ in the last bit from those without overlap.
    """
    timeout: float
    """Seconds allowed per step of all of a worker's environments. A worker that takes longer is replaced. Making
    them, and making one environment in the trainer's process, may take five times as long, and at least 20 s.
    """
    restarts: int
    """Workers that are replaced before the run ends. Episodes of a failed worker are dropped."""


class EvalSettings(TypedDict, total=False):
    """Evaluation in separate environments."""

    every: Count | None
    """Environment steps between evaluations; 0 disables them. Default: 1/20 of the run."""
    episodes: Count
    """Episodes per evaluation, rounded up to the same number in each environment."""
    mode: Literal["auto", "greedy", "sample"]
    """Action selection; `auto` follows the algorithm's publication."""
    num_envs: Count
    """Environments for evaluation."""
    best: str
    """Metric of evaluations whose highest value marks the best checkpoint: METRIC or TEAM/METRIC, such as
    adversary/return_mean or metric/won; -METRIC marks the lowest. auto: the mean return of the first team that
    learns, or with self-play the sum of the Elo ratings. If several teams learn, each also keeps its own best
    checkpoint, by its mean return or rating.
    """
    min_episodes: Count
    """Episodes that an evaluation needs for its checkpoint to be marked as best. Only evaluations after the first
    update count.
    """


class CheckpointSettings(TypedDict, total=False):
    """Checkpoints to resume from."""

    every: Count | None
    """Environment steps between checkpoints; 0 saves only the last. Default: 1/20 of the run."""
    keep: bool
    """Keep all checkpoints, not only `last`, the one before it, and the best ones."""
    policy_seconds: float
    """Seconds between snapshots of the policies for `coterie watch`, which take at most 1% of the time; 0: none,
    and watching follows the checkpoints.
    """


class LogSettings(TypedDict, total=False):
    """Metric loggers in addition to `metrics.jsonl`."""

    tensorboard: bool
    """Write TensorBoard event files to the run folder."""
    wandb: bool
    """Log metrics to Weights & Biases (requires the extra `coterie[wandb]`)."""
    mlflow: bool
    """Log metrics to MLflow (requires the extra `coterie[mlflow]`)."""
    project: str | None
    """W&B project, or MLflow experiment. Default: coterie for W&B, the name of the environment for MLflow."""
    group: str | None
    """Group of the run in W&B, for example the seeds of one setting; in MLflow, the value of the tag `group`."""
    name: str | None
    """Name of the run in W&B and MLflow. Default: the name of the run folder."""
    tags: Sequence[str]
    """Tags of the run in W&B, e.g. [baseline,paper]; in MLflow, tags with the value true."""
    mlflow_uri: str | None
    """Tracking server or store of MLflow, any URI it supports, e.g. `sqlite:///mlflow.db`. Default: the environment
    variable MLFLOW_TRACKING_URI, or the folder `mlruns` in the current folder, which all runs share.
    """
    every: int
    """Updates between log entries."""
    video_every: Count | None
    """Environment steps between videos of an episode, which are recorded after evaluations, written to `videos/`
    and sent to W&B; 0: none. Default: with W&B one at the end, otherwise none.
    """
    git_patch: bool
    """Record changes in the git repository of the run's code in `manifest.json`: a patch of at most 100,000 bytes,
    and the names of untracked files.
    """


class OwnAlgorithmSettings(TypedDict, extra_items=Any):
    """Settings of an algorithm of your own."""

    name: Code
    """Class of the algorithm."""


class OtherEnvSettings(TypedDict, extra_items=Any):
    """Settings of an environment of another library, or of your own."""

    name: str | Code
    """Name, or the function or class that makes the environment."""


AlgoSettings = (
    COMASettings
    | DDPGSettings
    | QLearningSettings
    | SableSettings
    | FrozenSettings
    | HAPPOSettings
    | HASACSettings
    | HATRPOSettings
    | PPOSettings
    | MAGPOSettings
    | SACSettings
    | MATSettings
    | MATDecSettings
    | PACSettings
    | POCASettings
    | PQNSettings
    | RandomSettings
    | ScriptedSettings
    | SEACSettings
    | VDACSettings
    | OwnAlgorithmSettings
)

EnvSettings = (
    ParticleSettings
    | MatrixSettings
    | ProbeSettings
    | CoopSettings
    | ForagingSettings
    | SkirmishSettings
    | BoardSettings
    | SparseSettings
    | OvercookedSettings
    | WarehouseSettings
    | TrafficSettings
    | OtherEnvSettings
)


class TeamSettings(TypedDict, total=False):
    """A team with settings of its own: its algorithm, some of the algorithm's keys, or its roles."""

    algo: str | Code | AlgoSettings
    """Algorithm of the team. Keys that are not set are inherited from the top-level `algo` if both have the same
    name.
    """
    network: str | Code
    """Network of the actor."""
    critic_network: str | Code
    """Network of the critic."""
    mixer: str | Code
    """Mixer of Q-values."""
    run: str | os.PathLike[str]
    """Run of a frozen team."""
    rewards: RewardsSettings
    """Reward signals of the team. A team that learns inherits unset keys from the top-level section."""
    imitation: ImitationSettings
    """Behavior cloning of the team. A team that learns inherits unset keys from the top-level section."""
    roles: Sequence[str] | None
    """Environment roles that form the team. Default: the roles of the environment's group with the team's name."""


class TrainSettings(
    COMAKeys,
    DDPGKeys,
    QLearningKeys,
    SableKeys,
    HASACKeys,
    HATRPOKeys,
    MAGPOKeys,
    PACKeys,
    POCAKeys,
    PQNKeys,
    SEACKeys,
    VDACKeys,
    total=False,
):
    """Settings of a run, and of its algorithm, besides `algo` and `env`, which are arguments of `coterie.train`."""

    teams: Mapping[str, TeamSettings]
    """Settings of single teams, by name. Other teams use the top-level `algo`, `rewards` and `imitation`."""
    rewards: RewardsSettings
    """Reward signals."""
    imitation: ImitationSettings
    """Behavior cloning on demonstrations."""
    init: InitSettings | None
    """Warm start; null: random weights."""
    selfplay: SelfPlaySettings
    """Self-play."""
    alternate: AlternateSettings
    """Alternating training of teams."""
    curriculum: CurriculumSettings
    """Curriculum of lessons."""
    randomize: Mapping[str, float | str | Mapping[str, Any]]
    """Environment parameters by name that are sampled at the start of each episode, separately in each environment.
    Parameters of lessons take precedence.
    """
    steps: Count
    """Total environment steps, summed over all environments. The run ends after the first rollout that reaches
    them.
    """
    num_envs: Count
    """Environments that are stepped together."""
    ranks: int
    """Processes that train together on this machine, each with num_envs / ranks environments. torchrun sets it."""
    rank_timeout: float
    """Seconds to wait for a rank that does not respond before all ranks end."""
    workers: WorkersSettings
    """Worker processes."""
    seed: int
    """Seed of all random numbers."""
    device: str
    """Device of networks and built-in environments: auto (a GPU if available), cpu, cuda or cuda:N."""
    threads: int | Literal["auto"]
    """Threads of PyTorch. Results are bit-for-bit equal only for the same number. auto: OMP_NUM_THREADS if it is
    set, else the fastest number of at most 8 and the available cores, measured when a run starts and kept by its
    manifest.
    """
    kernels: Literal["auto", "on", "off"]
    """Fused C++ kernels on the CPU: on, off, or auto, which uses them if they can be compiled. Their results differ
    from those of PyTorch in the last bits.
    """
    precision: Literal["float32", "bfloat16"]
    """Type in which linear, convolutional and recurrent layers multiply: float32 or bfloat16. Everything else,
    losses and parameters included, is float32.
    """
    cuda_graphs: Literal["off", "on"]
    """Captures rollouts in built-in environments on a GPU as CUDA graphs, and targets and gradient steps of all
    algorithms: on or off.
    """
    check: Literal["on", "off"]
    """Checks what an environment that Coterie does not include returns in the first steps of a run: types, dtypes
    and ranges, flags, and that group rewards are declared. Errors of your own environment end the run; warnings,
    and errors of a library's, are printed once. `coterie check-env` checks more. off: no check.
    """
    out: str | os.PathLike[str] | None
    """Run folder. Default: runs/<env>/<algo>/<date>-seed<k>."""
    eval: EvalSettings
    """Evaluation."""
    checkpoint: CheckpointSettings
    """Checkpoints."""
    log: LogSettings
    """Logging."""
    progress: Literal["auto", "rich", "lines", "off"]
    """Progress display: rich (a live table), lines, or off; auto is rich in a terminal or notebook and lines
    otherwise.
    """
    lr: float
    """Learning rate of the optimizer."""
    lr_schedule: Literal["constant", "linear", "exponential"]
    """Schedule of the learning rates, from their value to `lr_end` times their value over the run."""
    lr_end: float
    """Final learning rates as a fraction of their initial values."""
    network: str | Code | None
    """Layers of all networks but mixers. null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`.
    `attention` over the entities that an agent observes, for any number of agents. `graph`, `commnet`, `ic3net`,
    `tarmac`: agents exchange messages, so that execution is centralized. Or your own factory of torch modules
    package.module:name, called as name(input_size, role=, part=).
    """
    rnn: Literal["none", "gru", "lstm"]
    """Recurrent layer."""
    sequence_length: int | None
    """Timesteps per training sequence of a recurrent network; null: the rollout length."""
    obs_agent_id: bool | None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""
    critic_agent_id: bool | None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and
    MASAC, and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    epochs: int
    """Passes over each rollout."""
    num_minibatches: int | None
    """Minibatches per pass. Each is one gradient step, or one of the actor if the critic has steps of its own.
    null: 4, or one per sequence if a rollout has fewer.
    """
    normalize_advantage: bool
    """Normalize advantages over all valid entries that they are computed for, a rollout or a batch of sequences."""
    clip_eps: float
    """Clip range of the policy ratio."""
    value_coef: float
    """Weight of the value loss."""
    critic: Literal["own", "joint", "state", "joint_state", "global"]
    """Input of the critic: the agent's own observation, the joint observation of the team, the environment's state,
    joint observation and state, or the observations of all teams (global).
    """
    gae_lambda: float
    """Lambda of generalized advantage estimation."""
    common_reward: bool
    """Give every agent the mean reward of the team."""
    target_update_interval: int | None
    """Gradient steps between hard updates of the target critic; null: a soft update after each step."""
    embedding_size: int
    """Size of an agent's embedding in the critic's attention; a multiple of its 4 heads."""
    num_heads: int
    """Attention heads; they divide `embedding_size`."""
    learn_temperature: bool
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each role."""
