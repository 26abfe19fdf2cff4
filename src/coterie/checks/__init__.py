"""Checks of environments, algorithms and runs: what looks wrong, the evidence, and a fix to try."""
