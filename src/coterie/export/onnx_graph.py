"""Policies as ONNX graphs, written by PyTorch's exporter."""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError, one_line
from coterie.core.installation import install_extra
from coterie.core.text import shorten
from coterie.core.tree import Tree
from coterie.core.types import HiddenState, Timestep
from coterie.export.signature import DTYPES, Input, inputs, outputs
from coterie.export.subject import NetworkPolicy, Subject, sensor_paths
from coterie.kernels import switch
from coterie.nets.layers import ACTIVATIONS, MLP, Linear
from coterie.nets.recurrent import GRU, LSTM
from coterie.policies.deterministic import DeterministicPolicy

OPSET = 18
"""Version of ONNX's operators, of December 2022."""
_EXAMPLE_ENVS = 3
"""Environments in the example that is traced: not 1, which the exporter would take as a constant."""
_MAX_ENVS = 1 << 31
"""A bound, since PyTorch 2.6 refuses a number of environments without one."""
_LIBRARIES = ("onnx", "onnxscript")


class TeamGraph(nn.Module):
    """One step of a team: the tensors of `inputs` in, those of `outputs` out.

    Greedy and sampled actions are computed by the policy's own code, with one pass of its network for both.
    """

    def __init__(self, subject: Subject):
        super().__init__()
        self.subject, self.inputs, self.outputs = subject, inputs(subject), outputs(subject)
        self._paths = {
            role.name: {name: path for name, (path, _) in sensor_paths(role.observation_space).items()}
            for role in subject.team.roles
        }
        self.policy = copy.deepcopy(subject.policy)
        self.networks = nn.ModuleList(self.policy.networks)
        for module in self.networks.modules():
            _simplify(module)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given: dict[str, dict[str, Any]] = {"hidden": {}, "noise": {}, "mask": {}, "obs": {}}
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            if spec.sensor:
                _put(given["obs"].setdefault(spec.key, {}), self._paths[spec.key][spec.sensor], tensor)
            else:
                given.setdefault(spec.kind, {})[spec.key] = tensor
        policy, timestep = self.policy, self._timestep(given, tensors[0])
        names, noise = {own.name: its.name for own, its in self.subject.roles}, self._noise(given["noise"])
        net = _OnceOnly(policy.net)
        policy = _with_network(policy, net) if self.subject.has_outputs else policy
        found: dict[tuple[str, str, str], Tensor | None] = {}
        for mode in ("greedy", "sample"):
            actions, hidden_state, _ = policy.act(timestep, given["hidden"], noise, mode)
            for own, its in names.items():
                continuous = actions[its].continuous
                found[mode, "discrete", own] = actions[its].discrete
                found[mode, "continuous", own] = None if continuous is None else continuous.clamp(-1, 1)
            for key, value in hidden_state.items():
                found[mode, "hidden", key] = found["any", "hidden", key] = value
        if self.subject.has_outputs:
            by_role = {k: x for b in policy.blocks for k, x in b.split_by_role(net.result[0][b.name]).items()}
            found |= {("none", "outputs", own): by_role[its] for own, its in names.items()}
        # An output that is an input, or another output, would have no name of its own.
        return tuple(cast(Tensor, found[spec.mode, spec.kind, spec.key]).clone() for spec in self.outputs)

    def _timestep(self, given: dict[str, dict[str, Any]], example: Tensor) -> Timestep:
        names = {own.name: its.name for own, its in self.subject.roles}
        everyone = example.new_ones(example.shape[0], self.subject.team.n, dtype=torch.bool)
        return Timestep(
            obs={names[role]: value for role, value in given["obs"].items()},
            action_mask={names[role]: value for role, value in given["mask"].items()},
            state={},
            alive=given.get("alive", {}).get("", everyone),
            first=given.get("first", {}).get("", ~everyone),
            acted=everyone[:, 0],
        )

    def _noise(self, by_role: dict[str, Tensor]) -> Tree:
        """Noise as the policy reads it."""
        names = {own.name: its.name for own, its in self.subject.roles}
        if self.subject.head == "epsilon_greedy":
            width = max(noise.shape[-1] for noise in by_role.values())
            return torch.cat([nn.functional.pad(x, (0, width - x.shape[-1])) for x in by_role.values()], 1)
        inner = {names[role]: noise for role, noise in by_role.items()}
        return {block.name: torch.cat([inner[r.name] for r in block.roles], 1) for block in self.policy.blocks}


class _OnceOnly(nn.Module):
    """Calls a network at the first call, and returns the same result at later ones."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self._net = [net]  # in a list: the network keeps its place in the module tree
        self.result: Any = None

    def forward(self, *arguments: Any) -> Any:
        if self.result is None:
            self.result = self._net[0](*arguments)
        return self.result


def _with_network(policy: NetworkPolicy, net: nn.Module) -> NetworkPolicy:
    """The policy with another network, without the state of exploration noise."""
    if isinstance(policy, DeterministicPolicy):
        return policy.with_network(net)
    other = copy.copy(policy)
    other.net = cast(Any, net)
    return other


def write_onnx(subject: Subject, path: Path) -> dict[str, Any]:
    """Writes a team's graph.

    Args:
        subject: The team.
        path: The file.

    Returns:
        The entry `onnx` of `policy.json`: opset and exporter.

    Raises:
        UserError: If a library is missing, or PyTorch cannot export the networks.
    """
    require_libraries("onnx")
    graph = TeamGraph(subject).eval()
    example = tuple(_example(spec) for spec in graph.inputs)
    batch = torch.export.Dim("batch", min=1, max=_MAX_ENVS)
    with torch.no_grad(), kernels_off(), quiet():
        try:
            # Traced here, because the exporter of PyTorch 2.6 would take the number of environments as a constant.
            shapes = (tuple({0: batch} for _ in graph.inputs),)
            torch.onnx.export(
                torch.export.export(graph, example, dynamic_shapes=shapes, strict=False),
                (),
                str(path),
                input_names=[spec.name for spec in graph.inputs],
                output_names=[spec.name for spec in graph.outputs],
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:
            raise export_error(subject, error) from error
    return {"opset": OPSET, "exporter": f"torch {torch.__version__}"}


def require_libraries(form: str) -> None:
    """Raises UserError if a library for the export to ONNX is not installed."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        other = (
            ", or use --format numpy, which needs nothing more, if the networks are not of algo.network"
            if form == "onnx"
            else ""
        )
        raise UserError(
            f"--format {form}: {missing[0]} is not installed. Install it with: {install_extra('export')}{other}"
        )


@contextmanager
def kernels_off() -> Iterator[None]:
    """Turns fused kernels off, which exports do not have."""
    before, switch.on = switch.on, False
    try:
        yield
    finally:
        switch.on = before


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Tensor) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _example(spec: Input) -> Tensor:
    shape, dtype = (_EXAMPLE_ENVS, *spec.shape), DTYPES[spec.dtype]
    return torch.ones(shape, dtype=dtype) if spec.kind in {"mask", "alive"} else torch.zeros(shape, dtype=dtype)


def _simplify(module: nn.Module) -> None:
    """Replaces code that is fast in training by equal code that is simple to trace: nothing in place, one timestep."""
    if isinstance(module, Linear):  # its own forward depends on the number of rows
        module.forward = partial(_linear, module)
    elif isinstance(module, GRU):
        module.forward = partial(_gru, module)
    elif isinstance(module, LSTM):
        module.forward = partial(_lstm, module)
    elif isinstance(module, MLP) and module.activation is ACTIVATIONS["tanh"]:
        module.activation = torch.tanh


def _linear(layer: Linear, x: Tensor) -> Tensor:
    return (torch.addmm if layer.weight.ndim == 2 else torch.baddbmm)(layer.bias, x, layer.weight)


def _gru(layer: GRU, x: Tensor, first: Tensor, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
    before = hidden_state["h"].masked_fill(first[0].unsqueeze(-1), 0)
    inputs, recurrent = x[0] @ layer.input_weight + layer.bias, before @ layer.weight
    (x_r, x_z, x_n), (h_r, h_z, h_n) = inputs.chunk(3, -1), recurrent.chunk(3, -1)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    new = torch.tanh(x_n + r * (h_n + layer.recurrent_bias))
    after = new + z * (before - new)
    return after.unsqueeze(0), {"h": after}


def _lstm(layer: LSTM, x: Tensor, first: Tensor, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
    reset = first[0].unsqueeze(-1)
    h, c = (hidden_state[name].masked_fill(reset, 0) for name in ("h", "c"))
    i, f, o, new = (x[0] @ layer.input_weight + layer.bias + h @ layer.weight).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h.unsqueeze(0), {"h": h, "c": c}


def export_error(subject: Subject, error: BaseException) -> UserError:
    """Returns the error for a network that PyTorch cannot export: the first line of its cause, and the user's line."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = next(iter(str(error).strip().splitlines()), "")
    brief = Exception(f"{type(error).__name__}: {shorten(first, 200)}").with_traceback(error.__traceback__)
    reason = one_line(brief).removeprefix("Exception: ")
    return UserError(f"team '{subject.team.name}' cannot be exported to ONNX: {reason}")


@contextmanager
def quiet() -> Iterator[None]:
    """Hides what the exporter prints, logs and warns of: notes about itself, and pages about what it cannot export."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
