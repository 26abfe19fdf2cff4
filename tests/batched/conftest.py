"""Tests of batched libraries that no other test needs: `make vmas` installs VMAS beside the rest, and runs these."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vmas") else ["test_*.py"]
