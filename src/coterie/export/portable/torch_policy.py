"""An exported team as a PyTorch module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.export.portable.native_actions import native_action
from coterie.export.portable.observation_reader import ObservationReader
from coterie.export.portable.policy_files import PolicyError, read_description, read_file, read_tensors

_ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class TorchPolicy(nn.Module):
    """One step of a team for B environments: tensors by name in, tensors by name out, as `policy.json` lists them.

    Weights are parameters, so that they can be moved to a device and trained.

    Args:
        path: Folder with `policy.json` and `weights.safetensors`.

    Attributes:
        info: Content of `policy.json`.

    Raises:
        PolicyError: If a file is missing, truncated or changed, or the export is an ONNX graph.
    """

    def __init__(self, path: str | Path):
        super().__init__()
        folder = Path(path)
        self.info = read_description(folder / "policy.json")
        if "network" not in self.info:
            raise PolicyError(f"{folder}: an ONNX graph. Export again with --format torch")
        file = "weights.safetensors"
        self._fill(read_tensors(read_file(folder, file, self.info["files"][file])))

    @classmethod
    def of(cls, info: dict[str, Any], tensors: dict[str, Any]) -> TorchPolicy:
        """Returns the module of a description, in the form of `policy.json`, and of NumPy arrays by name."""
        policy = cls.__new__(cls)
        nn.Module.__init__(policy)
        policy.info = info
        policy._fill(tensors)
        return policy

    def _fill(self, tensors: dict[str, Any]) -> None:
        self._roles = {role["name"]: role for role in self.info["roles"]}
        self._index = {name: i for i, name in enumerate(tensors)}
        self.weights = nn.ParameterList(nn.Parameter(torch.tensor(value)) for value in tensors.values())

    def first_inputs(self, obs: dict[str, Any]) -> dict[str, Tensor]:
        """Returns all inputs of one environment's first step, [1, ...] by name.

        Hidden states and noise are zeros, and masks allow everything.

        Args:
            obs: Observations by agent, as the environment returns them or as the policy reads them. Missing agents are
                dead.

        Raises:
            PolicyError: For unknown agents, and observations that are not in their space.
        """
        if unknown := sorted(obs.keys() - set(self.info["agents"])):
            raise PolicyError(f"obs: no agent '{unknown[0]}'. There are {', '.join(self.info['agents'])}")
        device = next(iter(self.weights)).device
        arrays = {
            role["name"]: [
                reader.read(obs[agent], f"obs of '{agent}'") if agent in obs else None for agent in role["agents"]
            ]
            for role in self.info["roles"]
            for reader in [ObservationReader(role)]
        }
        found: dict[str, Tensor] = {}
        for entry in self.info["inputs"]:
            kind, shape = entry["kind"], (1, *entry["shape"])
            tensor = torch.full(shape, kind in ("mask", "first"), dtype=getattr(torch, entry["dtype"]), device=device)
            if kind == "alive":
                tensor = torch.tensor([[agent in obs for agent in self.info["agents"]]], device=device)
            for i, own in enumerate(arrays[entry["key"]] if kind == "obs" else ()):
                if own is not None:
                    tensor[0, i] = torch.from_numpy(own[entry["sensor"]]).to(tensor)
            found[entry["name"]] = tensor
        return found

    def actions(self, outputs: dict[str, Tensor], mode: str) -> dict[str, Any]:
        """Returns the actions of the first environment by agent, in the form of their spaces.

        Args:
            outputs: Result of `forward`.
            mode: `greedy` or `sample`.
        """
        found: dict[str, Any] = {}
        for role in self.info["roles"]:
            arrays = {
                entry["kind"]: outputs[entry["name"]][0].detach().cpu().numpy()
                for entry in self.info["outputs"]
                if entry["mode"] == mode and entry["key"] == role["name"] and entry["kind"] != "hidden"
            }
            for i, agent in enumerate(role["agents"]):
                found[agent] = native_action(role["action"], {kind: list(array[i]) for kind, array in arrays.items()})
        return found

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the outputs by name for all inputs by name, each [B, ...]."""
        of: dict[str, dict[tuple[str, str], Tensor]] = {}
        for entry in self.info["inputs"]:
            of.setdefault(entry["kind"], {})[entry["key"], entry["sensor"]] = given[entry["name"]]
        hidden = {key: value for (key, _), value in of.get("hidden", {}).items()}
        hidden = {key: x.masked_fill(of["first"]["", ""].unsqueeze(-1), 0) for key, x in hidden.items()}
        found: dict[tuple[str, str, str], Tensor] = {}
        states = []
        for block in self.info["network"]:
            agents = slice(*block["agents"])
            out, after = self._block(block, of["obs"], {key: x[:, agents] for key, x in hidden.items()})
            states.append(after)
            start = 0
            for name in block["roles"]:
                stop = start + len(self._roles[name]["agents"])
                mask = of.get("mask", {}).get((name, ""))
                noise = of["noise"][name, ""]
                actions = self._act(block["action"], out[:, start:stop], mask, noise, slice(start, stop))
                found |= {(mode, kind, name): value for (mode, kind), value in actions.items()}
                start = stop
        found |= {("any", "hidden", key): torch.cat([state[key] for state in states], 1) for key in states[0]}
        for mode in ("greedy", "sample") if "last" in hidden else ():
            last = self._last(found, mode, hidden["last"].shape[-1])
            alive = of.get("alive", {}).get(("", ""))
            found[mode, "hidden", "last"] = last if alive is None else torch.where(alive.unsqueeze(-1), last, 0.0)
        return {entry["name"]: found[entry["mode"], entry["kind"], entry["key"]] for entry in self.info["outputs"]}

    def _weight(self, name: str) -> Tensor:
        return self.weights[self._index[name]]

    def _block(
        self, block: dict[str, Any], obs: dict[tuple[str, str], Tensor], hidden: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs [B, n, P] of a block's network, and the next state of its recurrent layer."""
        by_role = [torch.cat([self._encode(block, r, s, obs) for s in block["sensors"]], -1) for r in block["roles"]]
        x = torch.cat(by_role, 1)
        inputs, lead = [x], x.shape[:2]
        if block["last_action"]:
            inputs.append(hidden["last"][..., : block["last_action"]])
        if block["agent_ids"]:
            inputs.append(torch.eye(lead[1], device=x.device).expand(*lead, -1))

        def by_set(value: Tensor) -> Tensor:
            return value.transpose(0, 1) if block["sets"] else value.flatten(0, 1)

        def by_agent(value: Tensor) -> Tensor:
            return value.transpose(0, 1) if block["sets"] else value.unflatten(0, lead)

        x, after = by_set(torch.cat(inputs, -1)), {}
        for layer in block["layers"]:
            x = self._layer(layer, x)
        if block["rnn"] is not None:
            states = [by_set(hidden[key]) for key in ("h", "c") if key in hidden]
            after = self._recur(block["rnn"], x, states)
            x = after["h"]
        return by_agent(self._layer(block["head"], x)), {key: by_agent(value) for key, value in after.items()}

    def _encode(
        self, block: dict[str, Any], role: str, sensor: dict[str, Any], obs: dict[tuple[str, str], Tensor]
    ) -> Tensor:
        """Features [B, n, F] of one sensor."""
        x = obs[role, sensor["name"]]
        if not sensor["convolutions"]:
            x, norm = x.float(), block["normalizer"]
            if norm is None:
                return x
            return ((x - self._weight(norm["mean"])) / self._weight(norm["std"])).clamp(-norm["clip"], norm["clip"])
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        sets = x.shape[1] if block["sets"] else 1
        lead, x = x.shape[:2], x.permute(0, 1, 4, 2, 3)
        x = x.flatten(1, 2) if block["sets"] else x.flatten(0, 1)
        for layer in sensor["convolutions"]:
            weight, bias = self._weight(layer["weight"]), self._weight(layer["bias"])
            x = functional.conv2d(x, weight, bias, layer["stride"], groups=sets).relu()
        return x.reshape(*lead, -1)

    def _layer(self, layer: dict[str, Any], x: Tensor) -> Tensor:
        if layer["kind"] == "linear":
            return x @ self._weight(layer["weight"]) + self._weight(layer["bias"])
        if layer["kind"] == "layer_norm":
            return functional.layer_norm(x, x.shape[-1:]) * self._weight(layer["weight"]) + self._weight(layer["bias"])
        return _ACTIVATIONS[layer["kind"]](x)

    def _recur(self, rnn: dict[str, Any], x: Tensor, states: list[Tensor]) -> dict[str, Tensor]:
        inputs = x @ self._weight(rnn["input_weight"]) + self._weight(rnn["bias"])
        recurrent, h = states[0] @ self._weight(rnn["weight"]), states[0]
        if rnn["kind"] == "lstm":
            i, f, o, new = (inputs + recurrent).chunk(4, -1)
            c = f.sigmoid() * states[1] + i.sigmoid() * new.tanh()
            return {"h": o.sigmoid() * c.tanh(), "c": c}
        (x_r, x_z, x_n), (h_r, h_z, h_n) = inputs.chunk(3, -1), recurrent.chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        new = (x_n + r * (h_n + self._weight(rnn["recurrent_bias"]))).tanh()
        return {"h": new + z * (h - new)}

    def _act(
        self, head: dict[str, Any], out: Tensor, mask: Tensor | None, noise: Tensor, agents: slice
    ) -> dict[tuple[str, str], Tensor]:
        """Outputs of a role by mode and kind, from those of the network [B, n, P]."""
        choices, size, count = head["choices"], sum(head["choices"]), head["continuous"]
        found = {("none", "outputs"): out}
        if choices:
            logits = out[..., :size]
            found["greedy", "discrete"] = sampled = _best(logits, mask, choices)
            if head["kind"] == "epsilon_greedy":
                random = _best(noise[..., 1 : 1 + size], mask, choices)
                sampled = torch.where(noise[..., :1] < head["epsilon"], random, sampled)
            else:
                sampled = _best(logits + noise[..., :size], mask, choices)
            found["sample", "discrete"] = sampled
        if count:
            mean, raw, normal = out[..., size : size + count], out[..., size + count :], noise[..., size:]
            if head["kind"] == "stochastic":
                log_std = raw + head["init_log_std"]
                if head["log_std"]:
                    log_std = self._weight(head["log_std"])
                    log_std = log_std if len(log_std) == 1 else log_std[agents]
                sampled = mean + normal * log_std.clamp(-5, 2).exp()
            elif head["kind"] == "squashed":
                log_std = -1.5 + 3.5 * torch.tanh(raw + math.atanh(1.5 / 3.5))
                mean, sampled = mean.tanh(), (mean + normal * log_std.exp()).tanh()
            else:
                mean = sampled = mean.tanh()
            found["greedy", "continuous"], found["sample", "continuous"] = mean.clamp(-1, 1), sampled.clamp(-1, 1)
        return found

    def _last(self, found: dict[tuple[str, str, str], Tensor], mode: str, width: int) -> Tensor:
        """Actions as the hidden state stores the last ones [B, N, width]: every choice one-hot, then the numbers."""
        roles = []
        for name, role in self._roles.items():
            parts = []
            for k, count in enumerate(role["choices"]):
                parts.append(functional.one_hot(found[mode, "discrete", name][..., k], count).float())
            if role["continuous"]:
                parts.append(found[mode, "continuous", name])
            vector = torch.cat(parts, -1)
            roles.append(functional.pad(vector, (0, width - vector.shape[-1])))
        return torch.cat(roles, 1)


def _best(scores: Tensor, mask: Tensor | None, choices: list[int]) -> Tensor:
    """The best available choice of every component [.., K]."""
    scores = scores if mask is None else torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.stack([part.argmax(-1) for part in scores.split(choices, -1)], -1)
