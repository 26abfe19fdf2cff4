"""Algorithms, one file per family. They read rollouts of their own team, never environments, logs or files."""
