"""Checks of networks on observations: dead units, saturated tanh, scale of observations.

The activity of hidden layers comes from a policy that acts, or from the weights and observations of a checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor

from coterie.checks.diagnosis.run_view import LEARNED, LayerActivity, ObservationScale, RunView, Sample, TeamView, show
from coterie.checks.findings import Finding, Skipped
from coterie.nets.config import Activation, NetworkConfig
from coterie.nets.layers import MLP
from coterie.policies.base import Policy

DEAD_HIGH, DEAD_MEDIUM = 0.75, 0.5
"""Share of the units of a layer that are never active. Sokar et al. 2023 count dormant units in deep RL: networks that
learn have up to about a third, those that stop learning half and more. A dead ReLU has no gradient (Maas et al. 2013).
"""
SATURATED_HIGH, SATURATED_MEDIUM = 0.75, 0.5
"""Share of the activations of a layer beyond +-0.97, where the gradient of tanh is below 6%. Glorot and Bengio 2010
show that saturated layers stop those before them from learning.
"""
LARGE_HIGH, LARGE_MEDIUM = 100.0, 20.0
"""Largest absolute feature. Weights are initialized for inputs of variance 1; Andrychowicz et al. 2021 find
normalization of observations to be crucial, and clip normalized ones at 10.
"""
RATIO = 1000.0
"""Ratio of the standard deviations of features above which the small ones have practically no influence."""
MIN_OBSERVATIONS = 8
"""Observations below which a unit may be inactive by chance."""


def dead_units(run: RunView, team: TeamView) -> Finding | None:
    """Finds layers whose units are mostly never active."""
    layer = max(_layers(team, tanh=False), key=lambda layer: layer.dead)
    if layer.dead < DEAD_MEDIUM:
        return None
    return Finding(
        "high" if layer.dead >= DEAD_HIGH and not team.improvement >= LEARNED else "medium",
        f"{layer.dead:.0%} of the {layer.units} units of {layer.name} ({layer.activation}) are not active for any of "
        f"{team.sample.observations:,} observations",
        f"Train again with smaller steps: {team.smaller_lr()}.",
    )


def saturated_tanh(run: RunView, team: TeamView) -> Finding | None:
    """Finds layers whose activations are mostly at the ends of tanh."""
    layer = max(_layers(team, tanh=True), key=lambda layer: layer.saturated)
    if layer.saturated < SATURATED_MEDIUM:
        return None
    largest = max((scale.largest for scale in team.sample.scales), default=0.0)
    is_large = largest > LARGE_MEDIUM and team.settings.get("normalize_obs") is False
    return Finding(
        "high" if layer.saturated >= SATURATED_HIGH and not team.improvement >= LEARNED else "medium",
        f"{layer.saturated:.0%} of the activations of {layer.name} are beyond 0.97, where tanh has almost no gradient, "
        f"over {team.sample.observations:,} observations",
        f"Normalize observations: {team.key('normalize_obs', True)}."
        if is_large
        else f"Normalize layers: {team.key('layer_norm', 'hidden')}.",
    )


def _layers(team: TeamView, *, tanh: bool) -> list[LayerActivity]:
    """Returns the layers with tanh, or with another activation. Skipped if there are none to check."""
    sample = team.sample
    if not sample.layers:
        raise Skipped(sample.missing or "no hidden layer was found")
    if sample.observations < MIN_OBSERVATIONS:
        raise Skipped(f"{sample.observations} observations, fewer than {MIN_OBSERVATIONS}")
    layers = [layer for layer in sample.layers if (layer.activation == "tanh") == tanh]
    if not layers:
        raise Skipped(f"the network that acts has {'no' if tanh else 'only'} tanh layers", applies=False)
    return layers


def observation_scale(run: RunView, team: TeamView) -> Finding | None:
    """Finds observations that are large, or whose features differ much in size."""
    if not team.sample.scales:
        raise Skipped(team.sample.missing or "there are no vector observations")
    if team.settings.get("normalize_obs") is True:
        return None
    scale = max(team.sample.scales, key=lambda s: s.largest)
    fix = f"Normalize them: {team.key('normalize_obs', True)}."
    if scale.largest > LARGE_MEDIUM:
        return Finding(
            "high" if scale.largest > LARGE_HIGH else "medium",
            f"feature {scale.feature} of the observations of {scale.role} reaches {show(scale.largest)}; networks are "
            "initialized for inputs of about 1",
            fix,
        )
    uneven = max(team.sample.scales, key=lambda s: _ratio(s.widest, s.smallest))
    if _ratio(uneven.widest, uneven.smallest) > RATIO:
        return Finding(
            "medium",
            f"features of the observations of {uneven.role} have standard deviations from {show(uneven.smallest)} to "
            f"{show(uneven.widest)}",
            fix,
        )
    return None


def _ratio(widest: float, smallest: float) -> float:
    return widest / smallest if smallest > 0 and math.isfinite(widest) else 0.0


# --------------------------------------------------------------------------------- activity of layers, and scales

SATURATED = 0.97
"""Absolute value of tanh from which on it counts as saturated. Its gradient there is below 0.06."""
CONSTANT = 0.01
"""Standard deviation of a unit without an exact zero (elu, gelu, silu), as a fraction of the layer's mean standard
deviation, below which it counts as dead.
"""
MAX_ROWS = 8192
"""Observations that a layer is evaluated on at most."""

_LAYER = re.compile(r"(?:^|\.)networks\.([^.]+)\.network\.body\.(.+)$")


def scale_of(role: str, obs: Any) -> ObservationScale | None:
    """Returns the scale of a role's observations [.., D]; None for integers, which networks scale, for nested
    observations, and without finite ones.
    """
    if not isinstance(obs, Tensor) or not obs.is_floating_point() or not obs.ndim:
        return None
    x = obs.flatten(0, -2).double()
    if not x.numel() or not bool(x.isfinite().all()):
        return None
    largest = x.abs().amax(0)
    std = x.std(0, correction=0)
    varying = std[std > 1e-6 * largest.clamp(min=1e-12)]
    return ObservationScale(
        role=role,
        largest=float(largest.max()),
        feature=int(largest.argmax()),
        smallest=float(varying.min()) if len(varying) else math.nan,
        widest=float(varying.max()) if len(varying) else math.nan,
    )


def layer_activity(name: str, activation: str, output: Tensor) -> LayerActivity:
    """Returns the activity of a hidden layer.

    Args:
        name: Name of the layer.
        activation: Its activation function.
        output: Activations [M, units], or [G, M, units] with one set of parameters per agent.
    """
    units = output if output.ndim == 3 else output.unsqueeze(0)
    if activation == "tanh":
        dead, saturated = 0.0, float((units.abs() > SATURATED).double().mean())
    elif activation == "relu":
        dead, saturated = float((units <= 0).all(1).double().mean()), 0.0
    else:
        std = units.double().std(1, correction=0)
        dead, saturated = float((std <= CONSTANT * std.mean()).double().mean()), 0.0
    return LayerActivity(name, activation, units.shape[0] * units.shape[-1], dead, saturated)


@torch.no_grad()
def mlp_activities(name: str, mlp: MLP, activation: str, x: Tensor) -> list[LayerActivity]:
    """Returns the activity of each hidden layer of an MLP on its inputs [M, in], or [G, M, in]."""
    found = []
    before = mlp.layer_norm == "hidden"
    if mlp.norms is not None and not before:
        x = mlp.norms[0](x)
    for number, layer in enumerate(mlp.layers, start=1):
        x = layer(x)
        if mlp.norms is not None and before:
            x = mlp.norms[number - 1](x)
        x = mlp.activation(x)
        found.append(layer_activity(f"{name} layer {number}", activation, x))
        if mlp.norms is not None and not before:
            x = mlp.norms[number](x)
    return found


# ------------------------------------------------------------------------------------------------- networks in memory


class ActivityRecorder:
    """Records the inputs of all MLPs of a policy while it acts."""

    def __init__(self, policy: Policy, activation: str):
        self._activation = activation
        self._mlps = {
            _block_name(name): module
            for network in policy.networks
            for name, module in network.named_modules()
            if isinstance(module, MLP)
        }
        self._inputs: dict[str, list[Tensor]] = {name: [] for name in self._mlps}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context in which inputs are recorded, by hooks that are removed at its end."""

        def hook_of(name: str) -> Any:
            return lambda module, inputs: self._inputs[name].append(inputs[0].detach().clone())

        hooks = [mlp.register_forward_pre_hook(hook_of(name)) for name, mlp in self._mlps.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def layers(self) -> list[LayerActivity]:
        """Returns the activity of all layers on the recorded inputs."""
        found = []
        for name, mlp in self._mlps.items():
            if self._inputs[name]:
                x = thinned(torch.cat(self._inputs[name], -2), -2)
                found += mlp_activities(name, mlp, self._activation, x)
        return found


def thinned(x: Tensor, dim: int) -> Tensor:
    """Returns every k-th entry along an axis, so that at most `MAX_ROWS` are left."""
    every = -(-x.shape[dim] // MAX_ROWS)
    return x if every <= 1 else x.index_select(dim, torch.arange(0, x.shape[dim], every, device=x.device))


def _block_name(module: str) -> str:
    """Returns a module's name for readers: that of its role."""
    match = _LAYER.search(module + ".x")
    return match[1] if match else module or "network"


# --------------------------------------------------------------------------------------------- networks in checkpoints


def stored_observations(state: Mapping[str, Any], team: str) -> dict[str, Tensor]:
    """Returns observations that a checkpoint stores by role [M, n, ..]: the current ones, and the newest of replay.

    Args:
        state: State of the checkpoint.
        team: Name of the team.
    """
    found: dict[str, list[Tensor]] = {}
    timestep = state["collector"]["timestep"]
    if timestep is not None:
        alive = timestep["alive"]
        for role, obs in timestep["obs"].items():
            if isinstance(obs, Tensor) and bool(alive.any()):
                found.setdefault(role, []).append(obs)
    pieces = state["algorithms"][team].get("buffer", {}).get("pieces", [])
    for _, piece in pieces:
        for role, obs in piece["timesteps"]["obs"].items():
            if isinstance(obs, Tensor):
                found.setdefault(role, []).append(obs.flatten(0, 1))
    return {role: thinned(torch.cat(parts), 0) for role, parts in found.items()}


def stored_sample(state: Mapping[str, Any], team: str, settings: Mapping[str, Any]) -> Sample:
    """Returns the activity of the networks of a checkpoint on observations that it stores, without any other code.

    Args:
        state: State of the checkpoint.
        team: Name of the team.
        settings: Settings of the team's algorithm.
    """
    observations = stored_observations(state, team)
    policy = state["algorithms"][team]["policy"]
    weights = _body_weights(policy)
    moments, continuous = policy.get("moments", {}), _stored_continuous(policy, settings)
    roles = {role: obs for role, obs in observations.items() if role in weights}
    if not roles:
        return Sample(missing="the checkpoint stores no vector observations of the team", continuous=continuous)
    layers: list[LayerActivity] = []
    for role, obs in roles.items():
        x = _network_input(obs.float(), weights[role], moments.get(role))
        if obs.ndim == 3 and x is not None:
            layers += _stored_activities(role, weights[role], x, settings)
    return Sample(
        source="observations in the checkpoint",
        observations=sum(obs.shape[0] * obs.shape[1] for obs in roles.values()),
        scales=scales_of({role: obs for role, obs in roles.items() if obs.ndim == 3}),
        layers=tuple(layers),
        missing="" if layers else "the checkpoint does not describe the inputs of its networks",
        continuous=continuous,
    )


def _stored_continuous(policy: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """Returns the continuous actions of an agent from the parameters of its policy; None if they do not show it."""
    if settings.get("state_dependent_std") is True:
        return None
    parameters = [(k, x) for part in policy.values() if isinstance(part, Mapping) for k, x in part.items()]
    return next((int(x.shape[-1]) for key, x in parameters if str(key).startswith("log_std.")), 0)


def _body_weights(policy: Any) -> dict[str, dict[str, Tensor]]:
    """Returns the weights of hidden layers by block and by their name in the MLP."""
    found: dict[str, dict[str, Tensor]] = {}
    for part in policy.values():
        for key, value in part.items() if isinstance(part, Mapping) else ():
            match = _LAYER.search(key)
            if match and isinstance(value, Tensor):
                found.setdefault(match[1], {})[match[2]] = value
    return found


def _network_input(obs: Tensor, weights: Mapping[str, Tensor], moments: Any) -> Tensor | None:
    """Returns the inputs of a block's hidden layers, [M, in] or [n, M, in]; None if they contain unknown parts."""
    if moments is not None:
        std = (moments["deviation"] / moments["count"].clamp(min=1)).clamp(min=1e-4).sqrt()
        obs = ((obs - moments["mean"].float()) / std.float()).clamp(-10, 10)
    weight = weights["layers.0.weight"]
    agents, missing = obs.shape[-2], weight.shape[-2] - obs.shape[-1]
    if missing == agents:  # the agent's one-hot id
        obs = torch.cat([obs, torch.eye(agents).expand(*obs.shape[:-1], agents)], -1)
    elif missing:
        return None
    return obs.flatten(0, 1) if weight.ndim == 2 else obs.transpose(0, 1)


def _stored_activities(
    role: str, weights: Mapping[str, Tensor], x: Tensor, settings: Mapping[str, Any]
) -> list[LayerActivity]:
    activation = str(settings.get("activation"))
    if activation not in get_args(Activation):
        return []
    names = sorted(name for name in weights if re.fullmatch(r"layers\.\d+\.weight", name))
    first = weights[names[0]]
    norms = sum(re.fullmatch(r"norms\.\d+\.weight", name) is not None for name in weights)
    config = NetworkConfig(
        hidden_sizes=[weights[f"layers.{k}.weight"].shape[-1] for k in range(len(names))],
        activation=activation,  # pyright: ignore[reportArgumentType]
        layer_norm="hidden" if norms == len(names) else norms > 0,
    )
    sets = first.shape[0] if first.ndim == 3 else None
    mlp = MLP(first.shape[-2], config, torch.Generator(), sets)
    mlp.load_state_dict(dict(weights))
    return mlp_activities(role, mlp, activation, x)


def scales_of(observations: Mapping[str, Any]) -> tuple[ObservationScale, ...]:
    """Returns the scales of the observations [.., n, D] of roles, without those that have none."""
    scales = [scale_of(role, obs) for role, obs in observations.items()]
    return tuple(scale for scale in scales if scale is not None)
