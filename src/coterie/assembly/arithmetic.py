"""The settings that select the arithmetic of a process: `kernels` and `precision`; the check of `cuda_graphs`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.algos import registry
from coterie.assembly.environment import select_device
from coterie.config.schema import RunConfig
from coterie.core import precision
from coterie.core.errors import UserError
from coterie.kernels import switch


def configure_arithmetic(config: RunConfig, before: bool | None = None) -> switch.Choice:
    """Applies `kernels` and `precision` to this process.

    Args:
        config: Configuration of the run.
        before: True if the run started with kernels, which `kernels=auto` repeats if possible; None for a new run.

    Returns:
        The choice of kernels.

    Raises:
        UserError: If kernels or CUDA graphs are asked for and cannot be used.
    """
    device = select_device(config.device)
    if config.cuda_graphs == "on":
        algos = [choice.name for choice in (config.algo, *(team.algo for team in config.teams.values()))]
        _require_graphs(config.device, device, config.ranks, algos)
    precision.configure(config.precision)
    if config.precision == "float32":
        return switch.configure(config.kernels, str(device), before=before)
    if config.kernels == "on":
        raise UserError(
            f"kernels=on: the kernels compute in float32, not in precision={config.precision}. Use kernels=off or "
            "precision=float32."
        )
    return switch.configure("off")


def _require_graphs(setting: str, device: torch.device, ranks: int, algos: Sequence[str]) -> None:
    """Raises UserError if CUDA graphs cannot be used on a device, which `setting` selects."""
    if device.type != "cuda":
        selected = "" if setting == str(device) else f", which is {device} here"
        raise UserError(
            f"cuda_graphs=on: CUDA graphs need a GPU (device={setting}{selected}). Use cuda_graphs=off or device=cuda."
        )
    if ranks > 1:
        raise UserError(
            f"cuda_graphs=on: exchanges between ranks are not captured (ranks={ranks}). Use cuda_graphs=off or ranks=1."
        )
    if not any(registry.algorithm(name).capabilities.cuda_graphs for name in algos):
        names = (*registry.ALGOS, *registry.VARIANTS)
        able = [name for name in names if registry.algorithm(name).capabilities.cuda_graphs]
        raise UserError(
            f"cuda_graphs=on: {', '.join(dict.fromkeys(algos))} cannot capture gradient steps, only {', '.join(able)} "
            "can. Use cuda_graphs=off."
        )
