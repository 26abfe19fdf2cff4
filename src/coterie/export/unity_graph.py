"""Policies as ONNX models for Unity: one file per role, with the names that the ML-Agents package expects.

Unity decides for agents one by one, in batches of any size, so that a model reads one agent's observation. Names and
constants are those of version 3 of the package's models, of its classes TensorNames and SentisModelParamLoader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.export.onnx_graph import export_error, quiet
from coterie.export.portable.torch_policy import TorchPolicy
from coterie.export.subject import Subject, tensor_name
from coterie.export.weights import NetworkDescription

MODEL_VERSION = 3.0
"""Version of the models of ML-Agents 2 and newer."""
OPSET = 15
"""The newest operators that Unity's inference reads, according to its documentation."""

Entry = dict[str, Any]


class UnityGraph(nn.Module):
    """Actions of one agent, both sampled and deterministic, with the constants that Unity checks.

    Args:
        policy: Policy of a team of one agent.

    Attributes:
        inputs, outputs: Names of the tensors in order.
        memory: Size of the hidden state.
    """

    def __init__(self, policy: TorchPolicy):
        super().__init__()
        self.policy = policy
        (role,) = policy.info["roles"]
        self._role, self._name = role, role["name"]
        self._states = {x["key"]: x["shape"][-1] for x in policy.info["inputs"] if x["kind"] == "hidden"}
        self.memory = sum(self._states.values())
        constants: dict[str, list[float]] = {"version_number": [MODEL_VERSION], "memory_size": [float(self.memory)]}
        if role["continuous"]:
            constants["continuous_action_output_shape"] = [float(role["continuous"])]
        if role["choices"]:
            constants["discrete_action_output_shape"] = [float(x) for x in role["choices"]]
        self.constants = nn.ParameterDict(
            {name: nn.Parameter(torch.tensor([value]) if "shape" in name else torch.tensor(value), requires_grad=False)
             for name, value in constants.items()}
        )  # fmt: skip
        self.inputs = ["obs_0", *(["action_masks"] if role["choices"] else []), *(["recurrent_in"] * bool(self.memory))]
        kinds = [kind for kind, size in (("continuous", role["continuous"]), ("discrete", role["choices"])) if size]
        self.outputs = [*constants, *(f"{mode}{kind}_actions" for kind in kinds for mode in ("", "deterministic_"))]
        self.outputs += ["recurrent_out"] * bool(self.memory)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given, name = dict(zip(self.inputs, tensors, strict=True)), self._name
        obs = given["obs_0"]
        inputs = {f"obs.{name}": obs.unsqueeze(1), f"noise.{name}": self._noise(given).unsqueeze(1)}
        if "action_masks" in given:
            inputs[f"mask.{name}"] = (given["action_masks"] > 0.5).unsqueeze(1)
        if self.memory:
            inputs["first"] = torch.zeros_like(obs[:, :1]) > 0
            states = given["recurrent_in"].split(list(self._states.values()), -1)
            inputs |= {f"hidden.{key}": state for key, state in zip(self._states, states, strict=True)}
        by_name = {entry["name"]: (entry["kind"], entry["key"]) for entry in self.policy.info["inputs"]}
        found = self.policy(
            {tensor: inputs[f"{kind}.{key}" if key else kind] for tensor, (kind, key) in by_name.items()}
        )
        named = {(x["mode"], x["kind"], x["key"]): found[x["name"]] for x in self.policy.info["outputs"]}
        results: dict[str, Tensor] = dict(self.constants)
        for kind in ("continuous", "discrete"):
            for mode, prefix in (("sample", ""), ("greedy", "deterministic_")):
                if (mode, kind, name) in named:
                    results[f"{prefix}{kind}_actions"] = named[mode, kind, name].squeeze(1)
        if self.memory:
            results["recurrent_out"] = torch.cat([named["any", "hidden", key] for key in self._states], -1)
        return tuple(results[output] for output in self.outputs)

    def _noise(self, given: dict[str, Tensor]) -> Tensor:
        """Noise of the sampled actions [B, W]."""
        parts = []
        for part in self._role["noise"]:
            shape_of = (given["obs_0"][:, :1] * 0).expand(-1, part["size"])
            if part["kind"] == "normal":
                parts.append(torch.randn_like(shape_of))
            else:
                uniform = torch.rand_like(shape_of)
                parts.append(uniform if part["kind"] == "uniform" else -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log())
        return torch.cat(parts, -1)


def require_unity(subject: Subject) -> None:
    """Raises UserError if Unity's inference cannot act with a team, with the reason."""
    reasons = []
    for block in subject.policy.blocks:
        network: Any = subject.policy.net.networks[block.name]
        if network.network.sets is not None and block.n > 1:
            reasons.append("agents have networks of their own (algo.share_params=none)")
        if network.ids is not None:
            reasons.append("networks read the agent's id (algo.obs_agent_id)")
        if len(block.roles[0].observation_space.shape or ()) != 1:
            reasons.append("observations are not a single vector")
    if getattr(subject.policy, "reads_last_action", False):
        reasons.append("networks read last actions (algo.obs_last_action)")
    if reasons:
        raise UserError(f"team '{subject.team.name}' cannot be exported to ML-Agents: {reasons[0]}. Use --format onnx.")


def write_unity(subject: Subject, info: Entry, folder: Path) -> list[str]:
    """Writes a model for every role and returns the names of the files, in the order of the roles.

    Raises:
        UserError: If PyTorch cannot export a network.
    """
    info["onnx"] = {"opset": OPSET, "exporter": f"torch {torch.__version__}"}
    network = NetworkDescription(subject)
    names = []
    for i, role in enumerate(info["roles"]):
        graph = UnityGraph(TorchPolicy.of(_single(info | {"network": network.blocks}, role), network.tensors)).eval()
        widths = {"obs_0": role["shape"], "action_masks": [sum(role["choices"])], "recurrent_in": [1, graph.memory]}
        name = f"{tensor_name(role['name'])}.onnx"
        names.append(name if name not in names else f"{i}-{name}")
        try:
            with torch.no_grad(), quiet():
                torch.onnx.export(
                    graph,
                    tuple(torch.ones(2, *widths[name]) for name in graph.inputs),
                    str(folder / names[-1]),
                    input_names=graph.inputs,
                    output_names=graph.outputs,
                    opset_version=OPSET,
                    dynamo=False,
                    dynamic_axes={name: {0: "batch"} for name in (*graph.inputs, *_actions(graph))},
                )
        except Exception as error:
            raise export_error(subject, error) from error
    return names


def _actions(graph: UnityGraph) -> list[str]:
    return [name for name in graph.outputs if name not in graph.constants]


def _single(info: Entry, role: Entry) -> Entry:
    """The description of a team of one agent of a role."""
    name = role["name"]
    block = next(block for block in info["network"] if name in block["roles"])
    state = {"first", "hidden"}
    inputs = [
        {**x, "shape": [1, *x["shape"][1:]]} for x in info["inputs"] if x["kind"] in state or x["key"] == name
    ]  # fmt: skip
    return {
        **info,
        "agents": role["agents"][:1],
        "roles": [{**role, "agents": role["agents"][:1]}],
        "inputs": inputs,
        "outputs": [x for x in info["outputs"] if x["kind"] == "hidden" or x["key"] == name],
        "network": [{**block, "roles": [name], "agents": [0, 1], "sets": False}],
    }
