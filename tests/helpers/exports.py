"""Exported policies next to the policies that they were made from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.contract.vector import VectorEnv
from coterie.export.export import PLAYER, TORCH_POLICY, Format, player_source, torch_source, write_team
from coterie.export.subject import subject_of
from coterie.policies.base import Mode, Policy

TOLERANCE = 1e-5


def load_player(folder: Path, name: str = PLAYER) -> ModuleType:
    """Writes `coterie_player.py`, or the PyTorch module, into a folder and returns it as a module."""
    path = folder / name
    path.write_text(player_source() if name == PLAYER else torch_source())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scramble(policy: Any, env: VectorEnv, scale: float = 0.3) -> None:
    """Gives a policy weights of ordinary size everywhere, statistics of observations, and exploration."""
    if hasattr(policy, "epsilon"):
        policy.epsilon = 0.3
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for network in policy.networks:
            for parameter in network.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    normalizer = getattr(policy, "obs_normalizer", None)
    if normalizer is not None:
        timestep = env.reset(5)
        normalizer.update(timestep.obs, timestep.alive)


def exported(policy: Policy, folder: Path, form: Format, mode: Mode = "greedy") -> Any:
    """Exports a policy and returns it as the player reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_team(subject_of(policy.team, policy, mode), form, {}, folder)
    copy = load_player(folder).Policy(folder)
    if form == "torch":
        module = load_player(folder, TORCH_POLICY).TorchPolicy(folder)

        def run(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            with torch.no_grad():
                outputs = module({name: torch.from_numpy(x) for name, x in tensors.items()})
            return {name: x.numpy() for name, x in outputs.items()}

        copy.run = run
    return copy


def assert_same_rollouts(policy: Any, copy: Any, env: VectorEnv, steps: int, modes: tuple[Mode, ...]) -> int:
    """Plays episodes with a policy, and asserts that its copy acts in the same way with a hidden state of its own.

    Outputs of the networks are equal within 1e-5. Choices are the same unless the best two are that close.

    Returns:
        The number of actions that were compared.
    """
    compared, noise_source, seen = 0, torch.Generator().manual_seed(1), {}
    hook = policy.net.register_forward_hook(lambda _, __, result: seen.update(network=result[0]))
    run = copy.run

    def recorded(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen["copy"] = run(tensors)
        return seen["copy"]

    copy.run = recorded
    for mode in modes:
        timestep = env.reset(3)
        hidden, own_hidden = policy.initial_hidden_state(env.num_envs), copy.initial_hidden_state(env.num_envs)
        for _ in range(steps):
            noise = policy.draw_noise(1, env.num_envs, noise_source)[0]
            with torch.no_grad():
                action, hidden, _ = policy.act(timestep, hidden, noise, mode)
            own_noise = noise_by_role(policy, noise)
            masks = {name: x.numpy() for name, x in timestep.action_mask.items()}
            found, own_hidden = copy.step(
                {name: arrays(x) for name, x in timestep.obs.items()},
                own_hidden,
                mode=mode,
                mask=masks,
                first=timestep.first.numpy(),
                alive=timestep.alive.numpy(),
                noise=own_noise,
            )
            by_role = {k: x for b in policy.blocks for k, x in b.split_by_role(seen["network"][b.name]).items()}
            for role in policy.team.roles:
                outputs = seen["copy"][f"outputs.{role.name}"]
                np.testing.assert_allclose(outputs, by_role[role.name].numpy(), atol=TOLERANCE, rtol=TOLERANCE)
                scores = outputs[..., : role.action.mask_size]
                if mode == "sample" and copy.roles[0]["noise"][0]["kind"] == "gumbel":
                    scores = scores + own_noise[role.name][..., : role.action.mask_size]
                if role.name in masks:
                    scores = np.where(masks[role.name], scores, -np.inf)
                assert_same_actions(action[role.name], found[role.name], scores, role.action.choices)
                compared += role.n * env.num_envs
            for name, value in own_hidden.items():
                np.testing.assert_allclose(value, hidden[name].numpy(), atol=TOLERANCE, rtol=0)
            timestep = env.step(action)[1]
    hook.remove()
    copy.run = run
    return compared


def assert_same_actions(
    expected: Action, found: dict[str, np.ndarray], scores: np.ndarray, choices: tuple[int, ...]
) -> None:
    if expected.discrete is not None:
        assert found["discrete"].dtype == np.int64
        wrong = found["discrete"] != expected.discrete.numpy()
        parts = np.split(scores, np.cumsum(choices)[:-1], -1)
        best_two = [np.sort(part, -1)[..., -2:] for part in parts]
        gaps = np.stack([pair[..., -1] - pair[..., 0] for pair in best_two], -1)
        assert not (wrong & (gaps > 2 * TOLERANCE)).any()
        assert wrong.mean() < 1e-3
    if expected.continuous is not None:
        clipped = expected.continuous.clamp(-1, 1).numpy()
        np.testing.assert_allclose(found["continuous"], clipped, atol=TOLERANCE, rtol=0)


def noise_by_role(policy: Any, noise: Any) -> dict[str, np.ndarray]:
    """Noise of a policy as exports read it."""
    parts: dict[str, np.ndarray] = {}
    if isinstance(noise, Tensor):  # epsilon-greedy
        start = 0
        for role in policy.team.roles:
            parts[role.name] = noise[:, start : start + role.n, : 1 + role.action.mask_size].numpy()
            start += role.n
        return parts
    for block in policy.blocks:
        start = 0
        for role in block.roles:
            parts[role.name] = noise[block.name][:, start : start + role.n].numpy()
            start += role.n
    return parts


def arrays(obs: Any) -> Any:
    """Observations as NumPy arrays, sensors by `outer.inner`."""
    if isinstance(obs, Tensor):
        return obs.numpy()
    found: dict[str, np.ndarray] = {}
    for name, value in obs.items():
        inner = arrays(value)
        found |= {f"{name}.{k}": x for k, x in inner.items()} if isinstance(inner, dict) else {name: inner}
    return found
