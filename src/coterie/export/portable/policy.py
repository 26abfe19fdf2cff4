"""One exported team, for any number of environments at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from coterie.export.portable.network import NumpyNetwork
from coterie.export.portable.policy_files import PolicyError, read_description, read_file, read_tensors

_MAX_NUMBERS = 1 << 26

_NOISE = {
    "gumbel": lambda rng, shape: rng.gumbel(size=shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
}


class Policy:
    """One exported team, for any number of environments at once.

    Args:
        path: Folder with `policy.json`.

    Attributes:
        info: Content of `policy.json`.
        inputs, outputs: Descriptions of the tensors of `run`, by name.
        roles: Descriptions of the roles.
        agents: Names of the agents.

    Raises:
        PolicyError: If a file is missing, truncated or changed.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.info = read_description(self.path / "policy.json")
        try:
            self.roles, self.agents = self.info["roles"], self.info["agents"]
            self.inputs = {entry["name"]: entry for entry in self.info["inputs"]}
            self.outputs = {entry["name"]: entry for entry in self.info["outputs"]}
            if max(math.prod(entry["shape"]) for entry in self.inputs.values()) > _MAX_NUMBERS:
                raise PolicyError(f"{self.path}: inputs of more than {_MAX_NUMBERS} numbers")
            files = {name: read_file(self.path, name, entry) for name, entry in self.info["files"].items()}
            if self.info["backend"] == "onnx":
                self._run = _onnx_network(files["policy.onnx"])
            elif "network" not in self.info:
                raise PolicyError(f"{self.path}: written for Unity. Export again with another --format")
            else:
                self._run = NumpyNetwork(self.info, read_tensors(files["weights.safetensors"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise (
                error if isinstance(error, PolicyError) else PolicyError(f"{self.path}: damaged, export again")
            ) from None

    def initial_hidden_state(self, num_envs: int) -> dict[str, np.ndarray]:
        """Returns zeros [num_envs, ...] by name; {} for policies without hidden state."""
        hidden = [entry for entry in self.inputs.values() if entry["kind"] == "hidden"]
        return {entry["key"]: np.zeros((num_envs, *entry["shape"]), np.float32) for entry in hidden}

    def draw_noise(self, rng: np.random.Generator | None, num_envs: int) -> dict[str, np.ndarray]:
        """Returns noise for sampled actions by role [num_envs, n, ...]; zeros without a generator."""
        noise = {}
        for role in self.roles:
            lead = (num_envs, len(role["agents"]))
            parts = [np.zeros((*lead, 0))]
            for part in role["noise"]:
                shape = (*lead, part["size"])
                parts.append(np.zeros(shape) if rng is None else _NOISE[part["kind"]](rng, shape))
            noise[role["name"]] = np.concatenate(parts, -1).astype(np.float32)
        return noise

    def run(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name for all inputs by name, each [num_envs, ...]."""
        return self._run(tensors)

    def step(
        self,
        obs: dict[str, Any],
        hidden: dict[str, np.ndarray],
        *,
        mode: str,
        mask: dict[str, np.ndarray] | None = None,
        first: np.ndarray | None = None,
        alive: np.ndarray | None = None,
        noise: dict[str, np.ndarray] | None = None,
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Acts in a batch of B environments.

        Args:
            obs: By role [B, n, ...], or by role and sensor.
            hidden: From `initial_hidden_state` or the step before.
            mode: `greedy` or `sample`.
            mask: Available choices by role [B, n, A] bool; roles without an entry can choose everything.
            first: [B, N] bool, agents whose hidden state is reset before they act; None for nobody.
            alive: [B, N] bool, agents that exist; None for all.
            noise: From `draw_noise`; needed in mode `sample`.

        Returns:
            By role {"discrete": [B, n, K] int64, "continuous": [B, n, C] in [-1, 1]}, and the next hidden state.
        """
        some = next(iter(obs.values()))
        num_envs = len(next(iter(some.values())) if isinstance(some, dict) else some)
        noise = self.draw_noise(None, num_envs) if noise is None else noise
        tensors = {}
        for name, entry in self.inputs.items():
            kind, key = entry["kind"], entry["key"]
            shape = (num_envs, *entry["shape"])
            if kind == "obs":
                value = obs[key][entry["sensor"]] if entry["sensor"] else obs[key]
            elif kind in ("mask", "alive", "first"):
                value = mask.get(key) if kind == "mask" and mask else {"alive": alive, "first": first}.get(kind)
                value = np.full(shape, kind != "first") if value is None else value
            else:
                value = (hidden if kind == "hidden" else noise)[key]
            tensors[name] = np.ascontiguousarray(value, entry["dtype"]).reshape(shape)
        found = self.run(tensors)
        actions: dict[str, dict[str, np.ndarray]] = {role["name"]: {} for role in self.roles}
        after = {}
        for name, entry in self.outputs.items():
            if entry["mode"] in (mode, "any") and entry["kind"] == "hidden":
                after[entry["key"]] = found[name]
            elif entry["mode"] == mode:
                actions[entry["key"]][entry["kind"]] = found[name]
        return actions, after


def _onnx_network(content: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise PolicyError(
            "onnxruntime is not installed. Install it with `pip install onnxruntime`, or export with --format numpy"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the networks are too small for more
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each reason
        reason = " ".join(str(error).split())[:200]
        raise PolicyError(f"policy.onnx: onnxruntime {onnxruntime.__version__} cannot read it ({reason})") from None
    names = [output.name for output in session.get_outputs()]
    return lambda tensors: dict(zip(names, session.run(None, tensors), strict=True))
