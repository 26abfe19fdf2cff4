"""The settings that select the arithmetic of a process: `kernels` and `precision`."""

from __future__ import annotations

from coterie.commands.environment import select_device
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
        UserError: If kernels are asked for and cannot be used.
    """
    device = select_device(config.device)
    precision.configure(config.precision)
    if config.precision == "float32":
        return switch.configure(config.kernels, str(device), before=before)
    if config.kernels == "on":
        raise UserError(
            f"kernels=on: the kernels compute in float32, not in precision={config.precision}. Use kernels=off or "
            "precision=float32."
        )
    return switch.configure("off")
