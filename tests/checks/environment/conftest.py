"""Fixtures of the tests of the checker of environments."""

from clocks import steady_clock  # noqa: F401
