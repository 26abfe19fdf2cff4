"""Processes that step copies of outside environments."""
