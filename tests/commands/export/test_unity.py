"""Models for Unity have the names and constants of ML-Agents, and act as the policies that they were made from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from algo_worlds import Everything, env_of
from coterie.commands.export.export import write_team
from coterie.commands.export.subject import subject_of
from coterie.commands.export.unity_graph import require_unity
from coterie.core.errors import UserError
from coterie.core.types import Timestep
from coterie.nets.config import NetworkConfig
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy
from exports import TOLERANCE, load_player, scramble


def make_policy(kind: str, cls: Any = StochasticPolicy, **settings: Any) -> Any:
    env = env_of(Everything(kind, dead=0.0), 30)
    (team,) = env.spec.default_teams()
    policy = cls(team, NetworkConfig((16,), rnn_size=8, **settings), torch.Generator(), torch.device("cpu"))
    scramble(policy, env)
    return policy, env


def constants(model: Any) -> dict[str, np.ndarray]:
    """The constants of a model by the names of outputs, which Unity reads without running it."""
    found = {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def failed_checks(model: Any, obs: int, continuous: int, branches: list[int], recurrent: bool) -> list[str]:
    """The checks of ML-Agents' SentisModelParamLoader for one vector sensor, as far as they concern the model."""
    inputs = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in model.graph.input}
    outputs, values, failed = {x.name for x in model.graph.output}, constants(model), []
    if not 2 <= values.get("version_number", [0])[0] <= 3:
        failed.append("version")
    if (values.get("memory_size", [-1])[0] > 0) != recurrent:
        failed.append("memory size")
    if inputs.get("obs_0", [0])[1:] != [obs] or "obs_1" in inputs:
        failed.append("observation")
    if recurrent != ("recurrent_in" in inputs) or recurrent != ("recurrent_out" in outputs):
        failed.append("recurrent tensors")
    if branches and inputs.get("action_masks", [0])[1:] != [sum(branches)]:
        failed.append("action masks")
    sizes = {"continuous": [continuous] if continuous else [], "discrete": branches}
    for kind, size in sizes.items():
        present = {f"{kind}_actions", f"deterministic_{kind}_actions", f"{kind}_action_output_shape"} <= outputs
        if present != bool(size):
            failed.append(f"{kind} actions")
        elif size and values[f"{kind}_action_output_shape"].reshape(-1).tolist() != size:
            failed.append(f"size of {kind} actions")
    return failed


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rnn"), [("hybrid", "none"), ("multi_discrete", "lstm")])
def test_models_pass_unitys_checks_and_act_as_the_policy(kind: str, rnn: str, tmp_path: Path):
    policy, env = make_policy(kind, rnn=rnn, normalize_obs=True)
    write_team(subject_of(policy.team, policy, "greedy"), "mlagents", {}, tmp_path)
    timestep = env.reset(1)
    hidden = policy.initial_hidden_state(env.num_envs)
    everywhere = torch.ones_like(timestep.first)
    still = Timestep(timestep.obs, timestep.action_mask, {}, everywhere, ~everywhere, timestep.acted)
    with torch.no_grad():
        expected, after, _ = policy.act(still, hidden, None, "greedy")
    for i, role in enumerate(policy.team.roles):
        model = onnx.load(tmp_path / f"{role.name}.onnx")
        (size,), spec = role.observation_space.shape, role.action
        assert failed_checks(model, size, spec.continuous, list(spec.choices), rnn != "none") == []
        assert model.opset_import[0].version == 15
        session = onnxruntime.InferenceSession(tmp_path / f"{role.name}.onnx")
        rows = env.num_envs * role.n
        inputs = {"obs_0": timestep.obs[role.name].reshape(rows, -1).numpy()}
        inputs["action_masks"] = timestep.action_mask[role.name].reshape(rows, -1).float().numpy()
        if rnn != "none":
            inputs["recurrent_in"] = np.zeros((rows, 1, 16), np.float32)
        names = [x.name for x in session.get_outputs()]
        found = dict(zip(names, session.run(None, inputs), strict=True))
        discrete, continuous = expected[role.name].discrete, expected[role.name].continuous
        np.testing.assert_array_equal(found["deterministic_discrete_actions"], discrete.reshape(rows, -1))
        if continuous is not None:
            ours = continuous.reshape(rows, -1).clamp(-1, 1)
            np.testing.assert_allclose(found["deterministic_continuous_actions"], ours, atol=TOLERANCE)
            assert not np.allclose(found["continuous_actions"], ours, atol=TOLERANCE)
        allowed = np.split(inputs["action_masks"], np.cumsum(spec.choices)[:-1], -1)
        chosen = [np.take_along_axis(a, found["discrete_actions"][:, [k]], 1) for k, a in enumerate(allowed)]
        assert np.all(np.concatenate(chosen, 1) == 1)
        if rnn != "none":
            agents = slice(0, 2) if i == 0 else slice(2, 3)
            ours = torch.cat([after[key][:, agents].reshape(rows, 1, -1) for key in ("h", "c")], -1)
            np.testing.assert_allclose(found["recurrent_out"], ours, atol=TOLERANCE)
    player = load_player(tmp_path)
    with pytest.raises(player.PolicyError, match="written for Unity"):
        player.Policy(tmp_path)


@pytest.mark.parametrize(
    ("cls", "settings", "reason"),
    [
        (StochasticPolicy, {"share_params": "none"}, "algo.share_params=none"),
        (StochasticPolicy, {"obs_agent_id": True}, "algo.obs_agent_id"),
        (EpsilonGreedyPolicy, {"obs_last_action": True}, "algo.obs_last_action"),
    ],
)
def test_policies_that_unity_cannot_play_are_refused(cls: Any, settings: dict[str, Any], reason: str):
    policy, _ = make_policy("discrete", cls, **settings)
    with pytest.raises(UserError, match=re.escape(reason)):
        require_unity(subject_of(policy.team, policy, "greedy"))
