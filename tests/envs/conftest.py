"""Fixtures of all tests of environments."""

from clocks import steady_clock  # noqa: F401
