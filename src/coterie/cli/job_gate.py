"""Forks of this process that run the command line, for the jobs of sweeps, searches and published tables."""

from __future__ import annotations

from coterie.sweeps.job_processes import ForkGate

_MODULES = (
    "coterie.commands.train",
    "coterie.runs.plots",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "rich.console",
)


def job_gate() -> ForkGate:
    """Returns the gate of jobs that run the command line."""
    from coterie.__main__ import main  # it imports the command line

    return ForkGate(main, _MODULES)
