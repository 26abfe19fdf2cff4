"""The rules that ML-Agents 4 checks a model by before it acts, for models of version 3 and vector sensors.

They follow the package's C# classes SentisModelInfo (constants are outputs of a run with one agent and zeros as input),
SentisModelParamLoader (names, sizes), TensorGenerator and the appliers (types and ranks of what is read and written).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

KNOWN_INPUTS = {"prev_action", "epsilon", "action_masks", "sequence_length", "recurrent_in"}
KINDS = ("continuous", "discrete")


@dataclass(frozen=True)
class Behavior:
    """Behavior Parameters of an agent: sizes of its vector sensors, of continuous actions, and of discrete branches."""

    sensors: tuple[int, ...]
    continuous: int
    branches: tuple[int, ...]


class Model:
    """A model as Unity reads it."""

    def __init__(self, path: Path):
        session = onnxruntime.InferenceSession(path)
        self.inputs = {x.name: [d if isinstance(d, int) else 1 for d in x.shape] for x in session.get_inputs()}
        self.float_inputs = all(x.type == "tensor(float)" for x in session.get_inputs())
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.inputs.items()}
        names = [x.name for x in session.get_outputs()]
        self.outputs: dict[str, Any] = dict(zip(names, session.run(None, zeros), strict=True))

    def number(self, name: str) -> int:
        """The first number of an output, 0 if there is none; Unity casts it to a float tensor."""
        value = self.outputs.get(name)
        assert value is None or value.dtype == np.float32
        return 0 if value is None else int(value.reshape(-1)[0])

    def has_output_like(self, name: str) -> bool:
        return any(name in output for output in self.outputs)

    def acts(self, kind: str, deterministic: bool) -> bool:
        """True if the actions of a kind are there, and their size is positive."""
        name = f"deterministic_{kind}_actions" if deterministic else f"{kind}_actions"
        size = self.outputs.get(f"{kind}_action_output_shape")
        return self.has_output_like(name) and size is not None and float(size.sum()) > 0


def failed_checks(path: Path, behavior: Behavior, deterministic: bool) -> list[str]:
    """Returns the checks that a model fails for an agent, with or without Deterministic Inference."""
    model = Model(path)
    return _expected_tensors(model, deterministic) or [
        *_versions(model),
        *_inputs(model, behavior),
        *_sizes(model, behavior),
        *_tensors(model, behavior, deterministic),
    ]


def _expected_tensors(model: Model, deterministic: bool) -> list[str]:
    failed = [f"no {name}" for name in ("version_number", "memory_size") if name not in model.outputs]
    if not any(model.has_output_like(f"{kind}_actions") for kind in KINDS):
        failed.append("no action output")
    used = [kind for kind in KINDS if model.has_output_like(f"{kind}_actions")]
    return failed + [f"no {kind} actions or no size of them" for kind in used if not model.acts(kind, deterministic)]


def _versions(model: Model) -> list[str]:
    version, memory = model.number("version_number"), model.number("memory_size")
    if not 2 <= version <= 3:
        return [f"version {version}"]
    return ["a recurrent model of version 2"] if version == 2 and memory > 0 else []


def _inputs(model: Model, behavior: Behavior) -> list[str]:
    sensors = {f"obs_{i}": size for i, size in enumerate(behavior.sensors)}
    needed = [*sensors, *(["recurrent_in"] if model.number("memory_size") > 0 else [])]
    needed += ["action_masks"] if model.acts("discrete", False) else []
    failed = [f"no input {name}" for name in needed if name not in model.inputs]
    failed += [f"unexpected input {name}" for name in model.inputs if name not in {*sensors, *KNOWN_INPUTS}]
    return failed + [f"size of {x}" for x, size in sensors.items() if model.inputs.get(x, [1, size])[1:] != [size]]


def _sizes(model: Model, behavior: Behavior) -> list[str]:
    failed, branches = [], model.outputs.get("discrete_action_output_shape")
    if model.number("continuous_action_output_shape") != behavior.continuous:
        failed.append("number of continuous actions")
    if tuple(() if branches is None else branches.reshape(-1).tolist()) != behavior.branches:
        failed.append("discrete branches")
    return failed


def _tensors(model: Model, behavior: Behavior, deterministic: bool) -> list[str]:
    """Types and shapes for a batch of one, without which Unity's casts and indices fail while it acts."""
    prefix, memory = "deterministic_" if deterministic else "", model.number("memory_size")
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    if behavior.continuous:
        expected[f"{prefix}continuous_actions"] = ("float32", (1, behavior.continuous))
    if behavior.branches:
        expected[f"{prefix}discrete_actions"] = ("int64", (1, len(behavior.branches)))
    if memory > 0:
        expected["recurrent_out"] = ("float32", (1, 1, memory))
    found = {
        name: (str(model.outputs[name].dtype), model.outputs[name].shape) for name in expected & model.outputs.keys()
    }
    failed = [f"output {name}: {found.get(name)}" for name in expected if found.get(name) != expected[name]]
    if behavior.branches and model.inputs.get("action_masks") != [1, sum(behavior.branches)]:
        failed.append("input action_masks")
    if memory > 0 and model.inputs.get("recurrent_in") != [1, 1, memory]:
        failed.append("input recurrent_in")
    return failed if model.float_inputs else [*failed, "inputs that are not float"]
