"""Tests of batched libraries; `make vmas` installs VMAS and runs them."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vmas") else ["test_*.py"]
