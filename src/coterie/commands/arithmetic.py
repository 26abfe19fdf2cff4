"""The settings that select the arithmetic of a process: `kernels`, `precision` and `cuda_graphs`."""

from __future__ import annotations

import torch

from coterie.commands.environment import select_device
from coterie.config import registry
from coterie.config.schema import RunConfig
from coterie.core import cuda_graphs, precision
from coterie.core.errors import UserError
from coterie.kernels import switch


def configure_arithmetic(config: RunConfig, before: bool | None = None) -> switch.Choice:
    """Applies `kernels`, `precision` and `cuda_graphs` to this process.

    Args:
        config: Configuration of the run.
        before: True if the run started with kernels, which `kernels=auto` repeats if possible; None for a new run.

    Returns:
        The choice of kernels.

    Raises:
        UserError: If kernels or CUDA graphs are asked for and cannot be used.
    """
    device = select_device(config.device)
    _require_graphs(config, device)
    cuda_graphs.configure(config.cuda_graphs)
    precision.configure(config.precision)
    if config.precision == "float32":
        return switch.configure(config.kernels, str(device), before=before)
    if config.kernels == "on":
        raise UserError(
            f"kernels=on: the kernels compute in float32, not in precision={config.precision}. Use kernels=off or "
            "precision=float32."
        )
    return switch.configure("off")


def _require_graphs(config: RunConfig, device: torch.device) -> None:
    """Raises UserError if CUDA graphs are asked for and cannot be used."""
    if config.cuda_graphs == "off":
        return
    if device.type != "cuda":
        selected = "" if config.device == str(device) else f", which is {device} here"
        raise UserError(
            f"cuda_graphs=on: CUDA graphs need a GPU (device={config.device}{selected}). Use cuda_graphs=off or "
            "device=cuda."
        )
    if config.ranks > 1:
        raise UserError(
            f"cuda_graphs=on: exchanges between ranks are not captured (ranks={config.ranks}). Use cuda_graphs=off or "
            "ranks=1."
        )
    choices = (config.algo, *(team.algo for team in config.teams.values()))
    if not any(registry.algorithm(choice.name).capabilities.cuda_graphs for choice in choices):
        names = (*registry.ALGOS, *registry.VARIANTS)
        able = [name for name in names if registry.algorithm(name).capabilities.cuda_graphs]
        chosen = dict.fromkeys(choice.name for choice in choices)
        raise UserError(
            f"cuda_graphs=on: {', '.join(chosen)} cannot capture gradient steps, only {', '.join(able)} can. Use "
            "cuda_graphs=off."
        )
