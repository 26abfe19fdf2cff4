"""Settings of Q-learning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coterie.algos.algorithm import central_state_name, require_equal_spaces
from coterie.algos.off_policy import OffPolicyConfig
from coterie.algos.optimizer import Schedule
from coterie.config.schema import Count
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.nets.mixer_variants import MixerKind


class QLearningConfig(OffPolicyConfig):
    """Settings of DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX."""

    mixer: MixerKind = "none"
    """Mixer of the agents' Q-values: none (independent learners), vdn, qmix or qplex."""
    mixer_input: Literal["auto", "state", "joint"] = "auto"
    """Input of the mixer's hypernetworks: the environment's state, or the joint observation of the team. auto: the
    state if there is one.
    """
    mixing_embed_dim: int = Field(32, ge=1, le=100_000)
    """Width of the mixing layer."""
    hypernet_embed_dim: int = Field(64, ge=1, le=100_000)
    """Hidden units of the mixer's hypernetworks, if they have a hidden layer, see `hypernet_layers`."""
    hypernet_layers: Literal[1, 2] = 2
    """Layers of QMIX's hypernetworks: a hidden and a linear one (2), or a single linear one (1)."""
    weighting: Literal["none", "optimistic", "central"] = "none"
    """Weighted QMIX: reduces the loss of joint actions that are not underestimated to `weighting_alpha`, by the
    optimistic (OW) or the centrally weighted (CW) rule.
    """
    weighting_alpha: float = Field(0.5, gt=0, le=1)
    """Weight of those joint actions."""
    double_q: bool = True
    """Select the next action by the online network and evaluate it by the target network."""
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards per target before it bootstraps."""
    td_lambda: float | None = Field(None, ge=0, le=1)
    """Lambda of TD(lambda) targets along a sequence, which has `n_step` steps without recurrent layer; null: n-step
    targets.
    """
    obs_last_action: bool = False
    """Append the agent's last action to the input of its network; requires a recurrent layer."""
    epsilon_start: float = Field(1.0, ge=0, le=1)
    """Initial probability of a random action."""
    epsilon_end: float = Field(0.05, ge=0, le=1)
    """Final probability of a random action."""
    epsilon_decay_steps: Count = Field(50_000, ge=1, le=10**15)
    """Environment steps over which epsilon decays."""
    epsilon_schedule: Schedule = "linear"
    """Schedule of epsilon."""
    output_gain: float = Field(1.0, gt=0, le=10)
    """Gain of the orthogonal initialization of the output layer. A small one, such as 0.01, lets Q-values start near 0.
    Where observations are large numbers and rewards are small, as in foraging, Q-values start far from all returns
    otherwise, and learning is many times slower.
    """
    huber_delta: float | None = Field(None, gt=0, le=10**12)
    """Error beyond which the loss is linear; null: squared error."""
    reward_scale: Literal["none", "std", "standardize"] = "none"
    """Divide rewards by their running standard deviation (std), or also subtract their running mean (standardize),
    which changes the optimal policy where episodes differ in length.
    """

    @property
    def needs_state(self) -> bool:
        """True if the mixer reads an environment state where there is one."""
        return self.mixer in ("qmix", "qplex") and self.mixer_input != "joint"


def require_consistent(team: TeamSpec, config: QLearningConfig) -> None:
    """Checks that settings do not contradict each other.

    Raises:
        UserError: If they do.
    """
    require_equal_spaces(team, config.share_params)
    for name, epsilon in (("epsilon_start", config.epsilon_start), ("epsilon_end", config.epsilon_end)):
        if config.epsilon_schedule == "exponential" and epsilon == 0:
            raise UserError(
                f"algo.{name}=0: must be > 0 for an exponential schedule. Increase it, or set "
                f"algo.epsilon_schedule=linear."
            )
    if config.td_lambda is not None and not config.recurrent and config.n_step == 1:
        raise UserError(
            f"algo.td_lambda={config.td_lambda}: has no effect on sequences of one step. Set algo.n_step=5, for "
            f"example, or omit it."
        )
    if config.common_reward and config.mixer != "none":
        raise UserError(
            f"algo.common_reward=true: has no effect with algo.mixer={config.mixer}, which learns from the sum of the "
            f"team's rewards. Omit it."
        )
    if config.obs_last_action and not config.recurrent:
        raise UserError("algo.obs_last_action=true: requires a recurrent network. Set algo.rnn=gru.")
    if config.output_gain != 1.0 and config.init != "orthogonal":
        raise UserError(
            f"algo.output_gain={config.output_gain:g}: has no effect with algo.init={config.init}. Omit one of them."
        )
    if config.hypernet_layers == 1 and config.mixer != "qmix":
        raise UserError(f"algo.hypernet_layers=1: has no effect with algo.mixer={config.mixer}. Omit it.")
    if config.weighting != "none" and config.mixer != "qmix":
        raise UserError(f"algo.weighting={config.weighting}: requires QMIX. Set algo.mixer=qmix.")


def mixer_state(team: TeamSpec, config: QLearningConfig) -> str | None:
    """Returns the name of the state that the mixer reads; None if it reads joint observations or there is no mixer."""
    if not config.needs_state or (config.mixer_input == "auto" and not team.state_sizes):
        return None
    return central_state_name(team, f"mixer_input={config.mixer_input}")
