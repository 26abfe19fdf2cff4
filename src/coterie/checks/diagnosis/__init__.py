"""Checks of finished and running trainings: what looks wrong, the evidence, and a fix to try."""
