"""Networks as a description of their layers and named tensors, for readers without PyTorch's exporter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.errors import UserError
from coterie.export.signature import reads_last_action
from coterie.export.subject import Subject
from coterie.nets.encoders import DictEncoder, Encoder, ImageEncoder
from coterie.nets.joint_actions import action_size
from coterie.nets.layers import ACTIVATIONS, MLP
from coterie.nets.recurrent import GRU, LSTM
from coterie.nets.team import Block, BlockNetwork, ObservationNormalizer
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy

Entry = dict[str, Any]


def require_own_layers(subject: Subject) -> None:
    """Raises UserError if a network has other layers than hidden ones of Coterie, which have no description."""
    if not subject.has_outputs:
        raise UserError(
            f"team '{subject.team.name}' cannot be exported to this format: its agents decide one after another, which "
            "only a graph can hold. Use --format onnx."
        )
    networks = subject.policy.net.networks.values()
    if not all(isinstance(network, BlockNetwork) and isinstance(network.network.body, MLP) for network in networks):
        raise UserError(
            f"team '{subject.team.name}' cannot be exported to this format: its hidden layers are those of "
            "algo.network, which only a graph can hold. Use --format onnx."
        )


class NetworkDescription:
    """Layers and weights of a team's networks. They must pass `require_own_layers`.

    Args:
        subject: The team.

    Attributes:
        blocks: The entry `network` of `policy.json`: a description of each block's network.
        tensors: Weights by name.

    """

    def __init__(self, subject: Subject):
        self._subject = subject
        self.tensors: dict[str, np.ndarray] = {}
        self.blocks = [self._block(block) for block in subject.policy.blocks]

    def _block(self, block: Block) -> Entry:
        subject, name = self._subject, block.name
        network = subject.policy.net.networks[name]
        assert isinstance(network, BlockNetwork)
        inner = network.network
        assert isinstance(inner.body, MLP)
        return {
            "roles": [role.name for role in subject.roles_of(block)],
            "agents": [block.start, block.stop],
            "sets": inner.sets is not None,
            "normalizer": self._normalizer(block),
            "sensors": self._sensors(network.encoder, block.roles[0].observation_space, name),
            "last_action": action_size(block.action_spec) if reads_last_action(subject) else 0,
            "agent_ids": network.ids is not None,
            "layers": self._layers(inner.body, name),
            "rnn": None if inner.rnn is None else self._rnn(inner.rnn, name),
            "head": {"kind": "linear", **self._parameters(f"{name}.head", inner.head, ("weight", "bias"))},
            "action": self._action(block),
        }

    def _tensor(self, name: str, value: Tensor) -> str:
        while name in self.tensors:  # two names of users may look like one, such as `a.b` and `b` of `a`
            name += "'"
        self.tensors[name] = np.ascontiguousarray(value.detach().to("cpu", torch.float32).numpy())
        return name

    def _parameters(self, prefix: str, module: torch.nn.Module, names: tuple[str, ...]) -> dict[str, str]:
        return {name: self._tensor(f"{prefix}.{name}", module.get_parameter(name)) for name in names}

    def _normalizer(self, block: Block) -> Entry | None:
        normalizer = self._subject.policy.obs_normalizer
        if block.name not in normalizer.scales:
            return None
        parts = {x: normalizer.scales[block.name].get_buffer(x) for x in ("mean", "std")}
        names = {part: self._tensor(f"{block.name}.normalizer.{part}", value) for part, value in parts.items()}
        return {**names, "clip": self._clip(block, normalizer)}

    def _clip(self, block: Block, normalizer: ObservationNormalizer) -> float:
        """The largest normalized observation."""
        policy = self._subject.policy
        infinite = {
            role.name: torch.full((role.n, *(role.observation_space.shape or ())), torch.inf, device=policy.device)
            for role in policy.team.roles
        }
        everyone = torch.ones(policy.team.n, dtype=torch.bool, device=policy.device)
        largest = normalizer(infinite, everyone)[block.roles[0].name]
        assert isinstance(largest, Tensor)
        return largest.max().item()

    def _sensors(self, encoder: Encoder, space: spaces.Space, prefix: str, name: str = "") -> list[Entry]:
        if isinstance(encoder, DictEncoder):
            assert isinstance(space, spaces.Dict)
            found: list[Entry] = []
            for key, part in encoder.sensors.items():
                inner = f"{name}.{key}" if name else key
                found += self._sensors(part, space[key], f"{prefix}.{key}", inner)  # pyright: ignore[reportArgumentType]
            return found
        if not isinstance(encoder, ImageEncoder):
            return [{"name": name, "convolutions": []}]
        layers = []
        cnn = encoder.cnn
        for i, (weight, bias, (_, _, stride)) in enumerate(zip(cnn.weights, cnn.biases, cnn.layers, strict=True)):
            place = f"{prefix}.convolution_{i}"
            names = {"weight": self._tensor(f"{place}.weight", weight), "bias": self._tensor(f"{place}.bias", bias)}
            layers.append({**names, "stride": stride})
        return [{"name": name, "convolutions": layers}]

    def _layers(self, body: MLP, prefix: str) -> list[Entry]:
        activation = next(name for name, function in ACTIVATIONS.items() if function is body.activation)
        norms = [self._norm(norm, f"{prefix}.norm_{i}") for i, norm in enumerate(body.norms or ())]
        before = body.layer_norm == "hidden"
        layers = [] if before else norms[:1]
        for i, layer in enumerate(body.layers):
            layers.append({"kind": "linear", **self._parameters(f"{prefix}.layer_{i}", layer, ("weight", "bias"))})
            layers += norms[i : i + 1] if before else ()
            layers.append({"kind": activation})
            layers += norms[i + 1 : i + 2] if not before else ()
        return layers

    def _norm(self, norm: torch.nn.Module, prefix: str) -> Entry:
        return {"kind": "layer_norm", **self._parameters(prefix, norm, ("weight", "bias"))}

    def _rnn(self, rnn: GRU | LSTM, prefix: str) -> Entry:
        names = ("input_weight", "weight", "bias", *(("recurrent_bias",) if isinstance(rnn, GRU) else ()))
        return {"kind": "gru" if isinstance(rnn, GRU) else "lstm", **self._parameters(f"{prefix}.rnn", rnn, names)}

    def _action(self, block: Block) -> Entry:
        """Description of the step from outputs of the network to actions."""
        policy, spec = self._subject.policy, block.action_spec
        entry: Entry = {
            "kind": self._subject.head,
            "choices": list(spec.choices),
            "continuous": spec.continuous,
        }
        if isinstance(policy, EpsilonGreedyPolicy):
            entry["epsilon"] = policy.epsilon
        if isinstance(policy, StochasticPolicy) and spec.continuous:
            log_std = policy.actor.log_std
            has_own = block.name in log_std
            entry["log_std"] = self._tensor(f"{block.name}.log_std", log_std[block.name]) if has_own else None
            outputs = torch.zeros(1, block.n, spec.mask_size + spec.continuous * (1 if has_own else 2))
            log_std_at_zero = policy.actor.params(block, outputs.to(policy.device))[1]
            assert log_std_at_zero is not None
            entry["init_log_std"] = 0.0 if has_own else log_std_at_zero.flatten()[0].item()
        return entry
