"""Settings of mixers, which combine values of agents into the value of their team, and the mixers that they choose."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import torch
from pydantic import AfterValidator, Field

from coterie.algos.algorithm import central_state_name
from coterie.algos.base_config import Derived, LearnerConfig, RunFacts, module_factory
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.nets.config import ModuleFactory
from coterie.nets.joint_actions import JointAction
from coterie.nets.mixers import Mixer, MixerKind, build_mixer
from coterie.nets.user_mixer import UserMixer


def _check_own_mixer(value: str) -> str:
    if ":" not in value:
        raise ValueError("your own package.module:Class")
    return value


OwnMixer = Annotated[str, AfterValidator(_check_own_mixer)]
"""A user's class or factory of mixers `package.module:Class`."""


class MixerConfig(LearnerConfig):
    """Settings of mixers."""

    mixer: MixerKind | OwnMixer = "none"
    """Mixer of the agents' values."""
    mixer_input: Annotated[Literal["auto", "state", "joint"], Needs("mixer!=none|vdn")] = "auto"
    """Input of the mixer's hypernetworks: the environment's state, or the joint observation of the team. auto: the
    state if there is one.
    """
    mixing_embed_dim: Annotated[int, Needs("mixer!=none|vdn|qfix_sum|qfix_lin")] = Field(32, ge=1, le=100_000)
    """Width of the mixing layer."""
    hypernet_embed_dim: Annotated[
        int, Needs("mixer=qmix|qplex|qfix_sum|qfix_mono|qfix_lin"), Needs("hypernet_layers!=1")
    ] = Field(64, ge=1, le=100_000)
    """Hidden units of the mixer's hypernetworks, if they have a hidden layer, see `hypernet_layers`."""
    hypernet_layers: Literal[1, 2] = 2
    """Layers of QMIX's hypernetworks: a hidden and a linear one (2), or a single linear one (1)."""

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.reads_central and self.mixer_input == "auto" and run.team is not None:
            has_state = bool(run.team.state_sizes)
            reason = f"the environment has {'a' if has_state else 'no'} state"
            found["mixer_input"] = Derived("state" if has_state else "joint", reason)
        return found

    @property
    def needs_state(self) -> bool:
        """True if the mixer reads an environment state where there is one."""
        return self.reads_central and self.mixer_input != "joint"

    @property
    def reads_central(self) -> bool:
        """True if the mixer reads a state or the joint observation."""
        return self.mixer not in ("none", "vdn")

    @property
    def additive(self) -> bool:
        """True if QFIX has its additive form."""
        return False

    @property
    def mixer_factory(self) -> ModuleFactory | None:
        """The user's factory of mixers; None if the mixer is one of Coterie's. UserError if it cannot be imported."""
        return module_factory(self.mixer, "algo.mixer") if ":" in self.mixer else None


def require_mixer(config: MixerConfig) -> None:
    """Raises UserError if a setting of mixers has no effect."""
    if config.hypernet_layers == 1 and config.mixer != "qmix":
        raise UserError(f"algo.hypernet_layers=1: has no effect with algo.mixer={config.mixer}. Omit it.")


def mixer_state(team: TeamSpec, config: MixerConfig) -> str | None:
    """Returns the name of the state that the mixer reads; None if it reads joint observations or there is no mixer."""
    if not config.needs_state or (config.mixer_input == "auto" and not team.state_sizes):
        return None
    return central_state_name(team, f"mixer_input={config.mixer_input}")


def make_mixer(config: MixerConfig, team: TeamSpec, state_size: int, draw: torch.Generator) -> Mixer | None:
    """Returns the configured mixer; None for independent learners.

    Args:
        config: Settings of the learner.
        team: The team.
        state_size: Features of the state, or of the joint observation, that the mixer reads; 0 for none.
        draw: Source of the initial weights.
    """
    if (factory := config.mixer_factory) is not None:
        embed_dim = config.mixing_embed_dim
        return UserMixer(factory, agents=team.n, state_size=state_size, embed_dim=embed_dim, generator=draw)
    return build_mixer(
        cast(MixerKind, config.mixer),
        agents=team.n,
        state_size=state_size,
        joint_size=JointAction(team, torch.device("cpu")).size,
        embed_dim=config.mixing_embed_dim,
        hidden=None if config.hypernet_layers == 1 else config.hypernet_embed_dim,
        additive=config.additive,
        generator=draw,
    )
