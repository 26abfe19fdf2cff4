"""Environments: the interface and its checker, the built-in worlds, and adapters to other libraries."""
