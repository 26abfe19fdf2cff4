"""Modules of users in place of the hidden layers of actors, critics and Q-networks.

`algo.network=package.module:factory` names a function or class that is called as

    factory(input_size, role=..., part=...)

and returns a `torch.nn.Module` that maps [M, input_size] float32 to [M, features] float32. `role` is the role whose
agents read the network, None if it reads the whole team, and `part` is `actor`, `critic` or `q`. Both are passed only
if the factory has parameters of these names. Encoders of images, the recurrent layer and the output layer remain
Coterie's.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from coterie.core.errors import ReportedError, UserCodeError, UserError, one_line
from coterie.nets.config import ModuleFactory, NetworkConfig
from coterie.nets.layers import MLP, Linear

_PROBE_ROWS = 3
"""Rows of the input that determines the number of features: not 1, which modules may broadcast."""


def build_body(
    in_features: int, config: NetworkConfig, generator: torch.Generator, sets: int | None = None
) -> MLP | UserBody:
    """Returns the layers between a network's input and its recurrent or output layer.

    Args:
        in_features: Size of the input.
        config: Architecture; `config.body` selects a user's module.
        generator: Source of the initial weights.
        sets: Number of parameter sets, one for each of the n agents; None for one set that all agents share.

    Raises:
        UserError: If the user's module cannot be created, or has another interface.
    """
    if not isinstance(config.body, ModuleFactory):
        return MLP(in_features, config, generator, sets)
    return UserBody(in_features, config, config.body, generator, sets=sets)


OURS = ("coterie", "torch")
"""Packages whose classes depend on tensors only. Others may depend on Python values that change at any time."""


def is_ours(kind: type) -> bool:
    """True for a class of Coterie or PyTorch."""
    return kind.__module__.partition(".")[0] in OURS


def have_user_modules(networks: Iterable[nn.Module]) -> bool:
    """True if networks contain modules of a user."""
    modules = [module for network in networks for module in network.modules()]
    return not all(is_ours(type(module)) and not getattr(module, "wraps_user_module", False) for module in modules)


class UserBody(nn.Module):
    """A user's module, or one for each of `sets` parameter sets, with the interface of `MLP`.

    Initial weights that the module draws with PyTorch's global generator are seeded by `generator`.

    Args:
        in_features: Size of the input.
        config: Role and part of the network.
        factory: The user's factory.
        generator: Source of the initial weights.
        sets: Number of parameter sets; None for one that all agents share.

    Raises:
        UserError: If the module cannot be created, or has another interface.
    """

    wraps_user_module = True

    def __init__(
        self,
        in_features: int,
        config: NetworkConfig,
        factory: ModuleFactory,
        generator: torch.Generator,
        *,
        sets: int | None,
    ):
        super().__init__()
        self._factory, self._sets = factory, sets
        options = {"role": config.role, "part": config.part}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            parts = [
                make_module(factory, {"input_size": in_features}, options, "[rows, input_size] to [rows, features]")
                for _ in range(sets or 1)
            ]
            sizes = [_probe(factory, part, in_features) for part in parts]
        if len({id(part) for part in parts}) < len(parts):
            raise UserError(
                f"{place_of(factory)} returned the same module twice. With algo.share_params=none each agent needs its "
                f"own: create the module inside the factory{_location(factory.make)}."
            )
        if len(set(sizes)) > 1:
            raise UserError(
                f"{place_of(factory)} returned modules with {' and '.join(map(str, sorted(set(sizes))))} features for "
                f"agents of one role. Return the same number for all{_location(factory.make)}."
            )
        self.features = sizes[0]
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, head: Linear | None = None) -> Tensor:
        """Returns features [M, F] of [M, in], or [G, M, F] of [G, M, in] with sets; a `head` is applied last."""
        inputs = (x,) if self._sets is None else x.unbind(0)
        try:
            out = [part(rows) for part, rows in zip(self.parts, inputs, strict=True)]
        except ReportedError:
            raise
        except Exception as error:
            raise UserCodeError.of(place_of(self._factory), "forward", error) from error
        features = out[0] if self._sets is None else torch.stack(out)
        return features if head is None else head(features)


class UserTeamBody(nn.Module):
    """A user's module that sees the team, with the interface of `nets/team_bodies.py`.

    Its forward is called as `forward(x, alive)` with x [B, N, in] and alive [B, N] bool, and with `edges` [B, N, N]
    bool or None if it has a parameter of this name. It returns [B, N, features].

    Raises:
        UserError: If the module cannot be created, or has another interface.
    """

    wraps_user_module = True

    def __init__(self, in_features: int, config: NetworkConfig, factory: ModuleFactory, generator: torch.Generator):
        super().__init__()
        self._factory = factory
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            shapes = "[B, agents, input_size] to [B, agents, features]"
            options = {"role": None, "part": config.part}
            self.part = make_module(factory, {"input_size": in_features}, options, shapes)
            self._reads_edges = "edges" in inspect.signature(self.part.forward).parameters
            self.features = self._probe(in_features)

    def _probe(self, in_features: int) -> int:
        """Returns the number of features of the module's output. UserError for another shape or type."""
        x, alive = torch.zeros(2, _PROBE_ROWS, in_features), torch.ones(2, _PROBE_ROWS, dtype=torch.bool)
        given = f"an input of shape {list(x.shape)} and alive of shape {list(alive.shape)}"
        with probing(self._factory, given):
            out = self._call(x, alive, None)
        where = code_location(self.part, self._factory)
        if not isinstance(out, Tensor) or out.ndim != 3 or out.shape[:2] != x.shape[:2] or not out.shape[2]:
            found = f"shape {list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise UserError(
                f"{place_of(self._factory)} returned {found} for {given}{where}: expected [2, {_PROBE_ROWS}, "
                "features]. Return one row of features per agent."
            )
        require_float32(self._factory, self.part, out)
        return out.shape[2]

    def _call(self, x: Tensor, alive: Tensor, edges: Tensor | None) -> Any:
        return self.part(x, alive, edges=edges) if self._reads_edges else self.part(x, alive)

    def forward(self, x: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        try:
            return self._call(x, alive, edges)
        except ReportedError:
            raise
        except Exception as error:
            raise UserCodeError.of(place_of(self._factory), "forward", error) from error


def make_module(factory: ModuleFactory, sizes: dict[str, int], options: dict[str, Any], maps: str) -> nn.Module:
    """Calls the factory with sizes, and with those options that it has parameters for.

    Args:
        factory: The user's factory.
        sizes: Positional arguments by name.
        options: Keyword arguments.
        maps: Shapes of input and output of the module, for error messages.

    Raises:
        UserError: If it fails or returns no usable module.
    """
    try:
        parameters = inspect.signature(factory.make).parameters.values()
        accepts_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        names = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
        known = {name: value for name, value in options.items() if accepts_any or name in names}
        module = factory.make(*sizes.values(), **known)
    except ReportedError:
        raise
    except (Exception, SystemExit) as error:
        arguments = ", ".join([*sizes, *(f"{name}=" for name in options)])
        called = f"It is called as {getattr(factory.make, '__name__', 'factory')}({arguments})."
        raise UserError(f"{place_of(factory)} failed: {one_line(error)}. {called}") from error
    if not isinstance(module, nn.Module):
        found = type(module).__name__
        raise UserError(
            f"{place_of(factory)} returned a {found}{_location(factory.make)}: expected a torch.nn.Module from {maps}."
        )
    for part in module.modules():
        if isinstance(part, _BatchNorm | _DropoutNd):
            raise UserError(
                f"{place_of(factory)} contains {type(part).__name__}{code_location(module, factory)}, which acts "
                "differently in training and evaluation. Remove it; torch.nn.LayerNorm is supported."
            )
    return module


@contextlib.contextmanager
def probing(factory: ModuleFactory, given: str) -> Iterator[None]:
    """Computes no gradients, and turns errors of a user's module on `given` into a UserError."""
    try:
        with torch.no_grad():
            yield
    except ReportedError:
        raise
    except Exception as error:
        raise UserError(f"{place_of(factory)} failed in forward on {given}: {one_line(error)}.") from error


def require_float32(factory: ModuleFactory, module: nn.Module, out: Tensor) -> None:
    """Raises UserError if an output or the parameters of a user's module have another type."""
    wrong = [x.dtype for x in (out, *module.parameters()) if x.dtype != torch.float32]
    if wrong:
        where = code_location(module, factory)
        raise UserError(f"{place_of(factory)} has outputs or parameters of {wrong[0]}{where}: expected torch.float32.")


def _probe(factory: ModuleFactory, module: nn.Module, in_features: int) -> int:
    """Returns the number of features of a module's output. UserError if it is not a float32 tensor [rows, features]."""
    x = torch.zeros(_PROBE_ROWS, in_features)
    given = f"an input of shape {list(x.shape)}"
    with probing(factory, given):
        out = module(x)
    where = code_location(module, factory)
    if isinstance(out, tuple | list):
        raise UserError(
            f"{place_of(factory)} returned a {type(out).__name__} for {given}{where}: expected one tensor [rows, "
            "features]. Bodies have no hidden state; set algo.rnn=gru for a recurrent layer after the body."
        )
    if not isinstance(out, Tensor):
        raise UserError(f"{place_of(factory)} returned a {type(out).__name__} for {given}{where}: expected a tensor.")
    if out.ndim != 2 or len(out) != _PROBE_ROWS or not out.shape[1]:
        raise UserError(
            f"{place_of(factory)} returned shape {list(out.shape)} for {given}{where}: expected [{_PROBE_ROWS}, "
            "features]. Return one row of features per row of the input."
        )
    require_float32(factory, module, out)
    return out.shape[1]


def place_of(factory: ModuleFactory) -> str:
    """Returns the setting that names a factory, for error messages."""
    return f"{factory.setting}={factory.name}"


def code_location(module: nn.Module, factory: ModuleFactory) -> str:
    """Returns ` (file:line)` of a module's forward if its class is the user's, else that of the factory."""
    own = not type(module).__module__.startswith("torch.")
    return _location(type(module).forward) if own else _location(factory.make)


def _location(function: Callable[..., Any]) -> str:
    """Returns ` (file:line)` of the definition of a function or class, or nothing if it has none."""
    function = getattr(function, "func", function)  # of a partial function
    target: Any = function if hasattr(function, "__qualname__") else type(function)
    try:
        file, line = inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):  # typed at a prompt, or written in C
        return ""
    return f" ({os.path.basename(file or '')}:{line})"
