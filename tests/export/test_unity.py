"""Models for Unity have the names and constants of ML-Agents, and act as the policies that they were made from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec
from coterie.core.types import Action, Timestep
from coterie.export.export import write_team
from coterie.export.subject import subject_of
from coterie.export.unity_graph import require_unity
from coterie.nets.config import NetworkConfig
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy
from exports import TOLERANCE, load_player, scramble
from unity_rules import Behavior, failed_checks


def make_policy(kind: str, cls: Any = StochasticPolicy, **settings: Any) -> Any:
    env = env_of(Everything(kind, dead=0.0), 30)
    (team,) = env.spec.default_teams()
    policy = cls(team, NetworkConfig((16,), rnn_size=8, **settings), torch.Generator(), torch.device("cpu"))
    scramble(policy, env)
    return policy, env


def run_model(path: Path, role: RoleSpec, timestep: Timestep, memory: np.ndarray | None) -> dict[str, np.ndarray]:
    """Outputs of a model by name for all agents of a role in a batch, as Unity asks for them."""
    session = onnxruntime.InferenceSession(path)
    rows = timestep.first.shape[0] * role.n
    inputs = {"obs_0": timestep.obs[role.name].reshape(rows, -1).numpy()}
    if role.action.choices:
        inputs["action_masks"] = timestep.action_mask[role.name].reshape(rows, -1).float().numpy()
    for entry in session.get_inputs():
        if entry.name == "recurrent_in":
            inputs[entry.name] = np.zeros((rows, 1, entry.shape[-1]), np.float32) if memory is None else memory
    return dict(zip([x.name for x in session.get_outputs()], session.run(None, inputs), strict=True))


def assert_unity_acts_alike(found: dict[str, Any], expected: Action, mask: torch.Tensor | None, role: RoleSpec) -> None:
    """Deterministic actions are the policy's greedy ones; others differ from them and keep to masks."""
    if expected.continuous is not None:
        ours = expected.continuous.reshape(-1, role.action.continuous).clamp(-1, 1)
        np.testing.assert_allclose(found["deterministic_continuous_actions"], ours, atol=TOLERANCE)
        assert not np.allclose(found["continuous_actions"], ours, atol=TOLERANCE)
        assert np.abs(found["continuous_actions"]).max() <= 1
    if expected.discrete is not None:
        assert mask is not None
        ours = expected.discrete.reshape(-1, len(role.action.choices))
        np.testing.assert_array_equal(found["deterministic_discrete_actions"], ours)
        assert not np.array_equal(found["discrete_actions"], ours)
        allowed = np.split(mask.reshape(len(ours), -1).numpy(), np.cumsum(role.action.choices)[:-1], -1)
        chosen = [np.take_along_axis(a, found["discrete_actions"][:, [k]], 1) for k, a in enumerate(allowed)]
        assert np.all(np.concatenate(chosen, 1))


BODIES = [("hybrid", "gru"), ("multi_discrete", "lstm"), ("continuous", "none")]
"""The other role is discrete."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rnn"), BODIES)
def test_models_pass_unitys_checks_and_act_as_the_policy(kind: str, rnn: str, tmp_path: Path):
    policy, env = make_policy(kind, rnn=rnn, normalize_obs=True)
    write_team(subject_of(policy.team, policy, "greedy"), "mlagents", {}, tmp_path)
    timestep = env.reset(1)
    still, after = timestep, policy.initial_hidden_state(env.num_envs)
    memories: dict[str, np.ndarray] = {}
    for _ in range(2):  # the second step reads the memory that the first one wrote
        everywhere = torch.ones_like(timestep.first)
        still = Timestep(timestep.obs, timestep.action_mask, {}, everywhere, ~everywhere, timestep.acted)
        with torch.no_grad():
            expected, after, _ = policy.act(still, after, None, "greedy")
        for role in policy.team.roles:
            agents = slice(0, 2) if role.name == "guard" else slice(2, 3)
            found = run_model(tmp_path / f"{role.name}.onnx", role, still, memories.get(role.name))
            assert_unity_acts_alike(found, expected[role.name], still.action_mask.get(role.name), role)
            if rnn != "none":
                keys = ("h",) if rnn == "gru" else ("h", "c")
                ours = torch.cat([after[key][:, agents].reshape(-1, 1, after[key].shape[-1]) for key in keys], -1)
                np.testing.assert_allclose(found["recurrent_out"], ours, atol=TOLERANCE)
                memories[role.name] = found["recurrent_out"]
        timestep = env.step(expected)[1]
    for role in policy.team.roles:
        behavior = Behavior(role.observation_space.shape, role.action.continuous, tuple(role.action.choices))
        for deterministic in (False, True):
            assert failed_checks(tmp_path / f"{role.name}.onnx", behavior, deterministic) == []
            wrong = failed_checks(tmp_path / f"{role.name}.onnx", replace(behavior, sensors=(4,)), deterministic)
            assert wrong == ["size of obs_0"]
        model = onnx.load(tmp_path / f"{role.name}.onnx")
        assert [(x.domain, x.version) for x in model.opset_import] == [("", 15)]
    info = json.loads((tmp_path / "policy.json").read_text())
    assert set(info["files"]) == {"guard.onnx", "scout.onnx"}
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
