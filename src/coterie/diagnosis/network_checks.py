"""Checks of networks on observations: dead units, saturated tanh, scale of observations."""

from __future__ import annotations

import math

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.run_view import LEARNED, RunView, TeamView, show

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


def dead_units(run: RunView, team: TeamView) -> Outcome:
    """Finds layers whose units are mostly never active."""
    layers = [layer for layer in team.sample.layers if layer.activation != "tanh"]
    skipped = _missing(team, tanh=False)
    if skipped is not None:
        return skipped
    layer = max(layers, key=lambda layer: layer.dead)
    if layer.dead < DEAD_MEDIUM:
        return None
    return Finding(
        "dead units",
        "high" if layer.dead >= DEAD_HIGH and not team.improvement >= LEARNED else "medium",
        f"{layer.dead:.0%} of the {layer.units} units of {layer.name} ({layer.activation}) are not active for any of "
        f"{team.sample.observations:,} observations",
        f"Train again with smaller steps, {team.smaller_lr()}, or with {team.key('layer_norm', True)}.",
        team.name,
    )


def saturated_tanh(run: RunView, team: TeamView) -> Outcome:
    """Finds layers whose activations are mostly at the ends of tanh."""
    skipped = _missing(team, tanh=True)
    if skipped is not None:
        return skipped
    layer = max((layer for layer in team.sample.layers if layer.activation == "tanh"), key=lambda x: x.saturated)
    if layer.saturated < SATURATED_MEDIUM:
        return None
    other = "layer_norm" if team.settings.get("normalize_obs") is True else "normalize_obs"
    return Finding(
        "saturated tanh",
        "high" if layer.saturated >= SATURATED_HIGH and not team.improvement >= LEARNED else "medium",
        f"{layer.saturated:.0%} of the activations of {layer.name} are beyond 0.97, where tanh has almost no gradient, "
        f"over {team.sample.observations:,} observations",
        f"Train again with {team.key(other, True)}, or smaller steps: {team.smaller_lr()}.",
        team.name,
    )


def _missing(team: TeamView, *, tanh: bool) -> Skipped | None:
    """Returns why layers with tanh, or with another activation, cannot be checked; None if they can."""
    sample = team.sample
    if not sample.layers:
        return Skipped(sample.missing or "no hidden layer was found")
    if sample.observations < MIN_OBSERVATIONS:
        return Skipped(f"{sample.observations} observations, fewer than {MIN_OBSERVATIONS}")
    if not any((layer.activation == "tanh") == tanh for layer in sample.layers):
        return Skipped(f"the network that acts has {'no' if tanh else 'only'} tanh layers", applies=False)
    return None


def observation_scale(run: RunView, team: TeamView) -> Outcome:
    """Finds observations that are large, or whose features differ much in size."""
    if not team.sample.scales:
        return Skipped(team.sample.missing or "there are no vector observations")
    if team.settings.get("normalize_obs") is True:
        return None
    scale = max((s for s in team.sample.scales if not s.integer), key=lambda s: s.largest, default=None)
    if scale is None:
        return None
    fix = f"Normalize them: {team.key('normalize_obs', True)}."
    if scale.largest > LARGE_MEDIUM:
        return Finding(
            "observation scale",
            "high" if scale.largest > LARGE_HIGH else "medium",
            f"feature {scale.feature} of the observations of {scale.role} reaches {show(scale.largest)}; networks are "
            "initialized for inputs of about 1",
            fix,
            team.name,
        )
    uneven = max(team.sample.scales, key=lambda s: _ratio(s.widest, s.smallest))
    if _ratio(uneven.widest, uneven.smallest) > RATIO:
        return Finding(
            "observation scale",
            "medium",
            f"features of the observations of {uneven.role} have standard deviations from {show(uneven.smallest)} to "
            f"{show(uneven.widest)}",
            fix,
            team.name,
        )
    return None


def _ratio(widest: float, smallest: float) -> float:
    return widest / smallest if smallest > 0 and math.isfinite(widest) else 0.0
