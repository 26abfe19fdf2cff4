"""Mixers of users in place of those of VDN, QMIX and QPLEX.

`algo.mixer=package.module:Class` names a class or function that is called as

    Class(agents, state_size, embed_dim=...)

and returns a `torch.nn.Module` with the method

    forward(values, state, alive=...)

that maps Q of the agents' actions, `values` [.., agents], and `state` [.., state_size], both float32, to Q of the team
[..]. The leading axes are time and sequences. `state` is the environment's state or the joint observation of the team,
see `algo.mixer_input`. Dead agents have a value of 0, and `alive` [.., agents] bool is False for them. `embed_dim` is
`algo.mixing_embed_dim`. `embed_dim` and `alive` are passed only if there are parameters of these names.

Each agent takes the action of its own highest value, which is the team's best choice only if Q of the team never
decreases with a value. Coterie does not check that.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import ReportedError, UserCodeError, UserError
from coterie.nets.config import ModuleFactory
from coterie.nets.mixers import Mixer
from coterie.nets.user_body import code_location, make_module, place_of, probing, require_float32

_PROBE = (2, 3)
"""Timesteps and sequences of the input that the output is checked with: different numbers, and not 1."""


class UserMixer(Mixer):
    """A user's module with the interface of `Mixer`.

    Initial weights that the module draws with PyTorch's global generator are seeded by `generator`.

    Args:
        factory: The user's factory.
        agents: Number of agents.
        state_size: Features of the state.
        embed_dim: Width of the mixing layer.
        generator: Source of the initial weights.

    Raises:
        UserError: If the module cannot be created, or has another interface.
    """

    wraps_user_module = True

    def __init__(
        self, factory: ModuleFactory, *, agents: int, state_size: int, embed_dim: int, generator: torch.Generator
    ):
        super().__init__()
        self._factory = factory
        sizes, options = {"agents": agents, "state_size": state_size}, {"embed_dim": embed_dim}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            self.module = make_module(factory, sizes, options, "[.., agents] and [.., state_size] to [..]")
            self._reads_alive = _takes(self.module, "alive")
            self._probe(agents, state_size)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        try:
            return self._call(chosen, state, alive)
        except ReportedError:
            raise
        except Exception as error:
            raise UserCodeError.of(place_of(self._factory), "forward", error) from error

    def _call(self, values: Tensor, state: Tensor, alive: Tensor) -> Any:
        return self.module(values, state, **({"alive": alive} if self._reads_alive else {}))

    def _probe(self, agents: int, state_size: int) -> None:
        """Raises UserError if the output for zeros is no float32 tensor of the shape of the leading axes."""
        values, state = torch.zeros(*_PROBE, agents), torch.zeros(*_PROBE, state_size)
        given = f"values of shape {list(values.shape)} and a state of shape {list(state.shape)}"
        place = place_of(self._factory)
        with probing(self._factory, given):
            out = self._call(values, state, torch.ones_like(values, dtype=torch.bool))
        where = code_location(self.module, self._factory)
        if not isinstance(out, Tensor):
            raise UserError(f"{place} returned a {type(out).__name__} for {given}{where}: expected a tensor.")
        if out.shape != _PROBE:
            raise UserError(
                f"{place} returned shape {list(out.shape)} for {given}{where}: expected {list(_PROBE)}. Return one "
                "value per team, without an axis of its own."
            )
        require_float32(self._factory, self.module, out)


def _takes(module: nn.Module, name: str) -> bool:
    """True if the module's `forward` has a parameter of this name, or takes any."""
    parameters = inspect.signature(module.forward).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
