"""Networks in NumPy: MLP, convolutions, GRU and LSTM, with the heads of all policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_LOWEST = np.finfo(np.float32).min

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32),
    "silu": lambda x: x * sigmoid(x),
}


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (np.tanh(0.5 * x) + 1)


class NumpyNetwork:
    """Evaluates the network that `policy.json` describes.

    Args:
        info: Content of `policy.json`.
        tensors: Its weights by name.
    """

    def __init__(self, info: dict[str, Any], tensors: dict[str, np.ndarray]):
        self._info, self._tensors = info, tensors
        self._roles = {role["name"]: role for role in info["roles"]}

    def __call__(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name for all inputs by name."""
        by_kind: dict[str, dict[tuple[str, str], np.ndarray]] = {}
        for entry in self._info["inputs"]:
            by_kind.setdefault(entry["kind"], {})[entry["key"], entry["sensor"]] = given[entry["name"]]
        hidden = {key: value for (key, _), value in by_kind.get("hidden", {}).items()}
        if hidden:
            first = by_kind["first"]["", ""][..., None]
            hidden = {key: np.where(first, np.float32(0), value) for key, value in hidden.items()}
        found: dict[tuple[str, str, str], np.ndarray] = {}
        states: list[dict[str, np.ndarray]] = []
        for block in self._info["network"]:
            agents = slice(*block["agents"])
            own = {key: value[:, agents] for key, value in hidden.items()}
            out, after = self._block(block, by_kind["obs"], own)
            states.append(after)
            start = 0
            for name in block["roles"]:
                stop = start + len(self._roles[name]["agents"])
                mask = by_kind.get("mask", {}).get((name, ""))
                noise = by_kind["noise"][name, ""]
                for (mode, kind), value in self._act(block, out[:, start:stop], mask, noise, (start, stop)).items():
                    found[mode, kind, name] = value
                start = stop
        for key in states[0]:
            found["any", "hidden", key] = np.concatenate([state[key] for state in states], 1)
        for mode in ("greedy", "sample") if "last" in hidden else ():
            alive = by_kind["alive"]["", ""] if "alive" in by_kind else None
            found[mode, "hidden", "last"] = self._last(found, mode, hidden["last"].shape[-1], alive)
        return {entry["name"]: found[entry["mode"], entry["kind"], entry["key"]] for entry in self._info["outputs"]}

    def _block(
        self, block: dict[str, Any], obs: dict[tuple[str, str], np.ndarray], hidden: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Outputs [B, n, P] of a block's network, and the next state of its recurrent layer."""
        parts = []
        for name in block["roles"]:
            sensors = [self._encode(block, name, sensor, obs) for sensor in block["sensors"]]
            parts.append(np.concatenate(sensors, -1))
        x = np.concatenate(parts, 1)
        inputs = [x]
        if block["last_action"]:
            inputs.append(hidden["last"][..., : block["last_action"]])
        if block["agent_ids"]:
            inputs.append(np.broadcast_to(np.eye(x.shape[1], dtype=np.float32), (*x.shape[:2], x.shape[1])))
        x = np.concatenate(inputs, -1)
        lead = x.shape[:2]

        def by_set(value: np.ndarray) -> np.ndarray:
            return value.swapaxes(0, 1) if block["sets"] else value.reshape(-1, value.shape[-1])

        def by_agent(value: np.ndarray) -> np.ndarray:
            return value.swapaxes(0, 1) if block["sets"] else value.reshape(*lead, -1)

        x = by_set(x)
        for layer in block["layers"]:
            x = self._layer(layer, x)
        after: dict[str, np.ndarray] = {}
        if block["rnn"] is not None:
            cell = self._gru if block["rnn"]["kind"] == "gru" else self._lstm
            states = {key: by_set(value) for key, value in hidden.items() if key != "last"}
            after = cell(block["rnn"], x, **states)
            x = after["h"]
        return by_agent(self._layer(block["head"], x)), {key: by_agent(value) for key, value in after.items()}

    def _encode(
        self, block: dict[str, Any], role: str, sensor: dict[str, Any], obs: dict[tuple[str, str], np.ndarray]
    ) -> np.ndarray:
        """Features [B, n, F] of one sensor."""
        x = obs[role, sensor["name"]]
        if not sensor["convolutions"]:
            x = x.astype(np.float32)
            if block["normalizer"] is None:
                return x
            mean, std = (self._tensors[block["normalizer"][part]] for part in ("mean", "std"))
            clip = block["normalizer"]["clip"]
            return np.clip((x - mean) / std, -clip, clip)
        x = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x
        images = x.swapaxes(0, 1) if block["sets"] else x.reshape(1, -1, *x.shape[2:])
        features = np.stack([self._convolve(sensor["convolutions"], i, len(images), x) for i, x in enumerate(images)])
        return features.swapaxes(0, 1) if block["sets"] else features.reshape(*x.shape[:2], -1)

    def _convolve(self, layers: list[dict[str, Any]], index: int, sets: int, x: np.ndarray) -> np.ndarray:
        """Features [M, F] of images [M, H, W, C] by the parameter set `index` of `sets`."""
        for layer in layers:
            weight, bias = self._tensors[layer["weight"]], self._tensors[layer["bias"]]
            own = slice(index * len(bias) // sets, (index + 1) * len(bias) // sets)
            size, stride = weight.shape[-1], layer["stride"]
            patches = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
            x = np.maximum(np.tensordot(patches, weight[own], axes=((3, 4, 5), (1, 2, 3))) + bias[own], 0)
        return x.transpose(0, 3, 1, 2).reshape(len(x), -1)

    def _layer(self, layer: dict[str, Any], x: np.ndarray) -> np.ndarray:
        kind = layer["kind"]
        if kind == "linear":
            return x @ self._tensors[layer["weight"]] + self._tensors[layer["bias"]]
        if kind == "layer_norm":
            centered = x - x.mean(-1, keepdims=True)
            scaled = centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + np.float32(1e-5))
            return scaled * self._tensors[layer["weight"]] + self._tensors[layer["bias"]]
        return ACTIVATIONS[kind](x)

    def _gru(self, rnn: dict[str, Any], x: np.ndarray, h: np.ndarray) -> dict[str, np.ndarray]:
        inputs = x @ self._tensors[rnn["input_weight"]] + self._tensors[rnn["bias"]]
        recurrent, size = h @ self._tensors[rnn["weight"]], h.shape[-1]
        gates = sigmoid(inputs[..., : 2 * size] + recurrent[..., : 2 * size])
        r, z = gates[..., :size], gates[..., size:]
        new = np.tanh(inputs[..., 2 * size :] + r * (recurrent[..., 2 * size :] + self._tensors[rnn["recurrent_bias"]]))
        return {"h": new + z * (h - new)}

    def _lstm(self, rnn: dict[str, Any], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
        weight, bias = self._tensors[rnn["input_weight"]], self._tensors[rnn["bias"]]
        gates, size = x @ weight + bias + h @ self._tensors[rnn["weight"]], h.shape[-1]
        i, f, o = (sigmoid(gates[..., k * size : (k + 1) * size]) for k in range(3))
        c = f * c + i * np.tanh(gates[..., 3 * size :])
        return {"h": o * np.tanh(c), "c": c}

    def _act(
        self,
        block: dict[str, Any],
        out: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
        agents: tuple[int, int],
    ) -> dict[tuple[str, str], np.ndarray]:
        """Outputs of a role by mode and kind, from those of the network [B, n, P]."""
        head, found = block["action"], {("none", "outputs"): out}
        choices, size = head["choices"], sum(head["choices"])
        if choices:
            logits = out[..., :size]
            found["greedy", "discrete"] = _best(logits, mask, choices)
            if head["kind"] == "epsilon_greedy":
                random = _best(noise[..., 1 : 1 + size], mask, choices)
                explores = noise[..., :1] < np.float32(head["epsilon"])
                found["sample", "discrete"] = np.where(explores, random, found["greedy", "discrete"])
            else:
                found["sample", "discrete"] = _best(logits + noise[..., :size], mask, choices)
        if count := head["continuous"]:
            mean, raw = out[..., size : size + count], out[..., size + count :]
            if head["kind"] == "stochastic":
                log_std = raw + np.float32(head["init_log_std"])
                if head["log_std"]:
                    log_std = self._tensors[head["log_std"]]
                    log_std = log_std if len(log_std) == 1 else log_std[slice(*agents)]
                sampled = mean + noise[..., size:] * np.exp(np.clip(log_std, -5, 2))
            elif head["kind"] == "squashed":
                log_std = np.float32(-1.5) + np.float32(3.5) * np.tanh(raw + np.float32(math.atanh(1.5 / 3.5)))
                mean, sampled = np.tanh(mean), np.tanh(mean + noise[..., size:] * np.exp(log_std))
            else:
                mean = sampled = np.tanh(mean)
            found["greedy", "continuous"], found["sample", "continuous"] = (np.clip(x, -1, 1) for x in (mean, sampled))
        return found

    def _last(
        self, found: dict[tuple[str, str, str], np.ndarray], mode: str, width: int, alive: np.ndarray | None
    ) -> np.ndarray:
        """Actions as the hidden state stores the last ones [B, N, width]: every choice one-hot, then the numbers."""
        roles = []
        for role in self._info["roles"]:
            parts, discrete = [], found.get((mode, "discrete", role["name"]))
            for k, count in enumerate(role["choices"]):
                assert discrete is not None
                parts.append(np.eye(count, dtype=np.float32)[discrete[..., k]])
            if role["continuous"]:
                parts.append(found[mode, "continuous", role["name"]])
            vector = np.concatenate(parts, -1)
            roles.append(np.pad(vector, ((0, 0), (0, 0), (0, width - vector.shape[-1]))))
        last = np.concatenate(roles, 1)
        return last if alive is None else np.where(alive[..., None], last, np.float32(0))


def split_components(values: np.ndarray, choices: list[int]) -> list[np.ndarray]:
    """Splits [.., sum A] into the discrete components [.., A]."""
    return np.split(values, np.cumsum(choices)[:-1], -1) if choices else []


def _best(scores: np.ndarray, mask: np.ndarray | None, choices: list[int]) -> np.ndarray:
    """The best available choice of every component [.., K]."""
    scores = scores if mask is None else np.where(mask, scores, _LOWEST)
    return np.stack([part.argmax(-1) for part in split_components(scores, choices)], -1)
