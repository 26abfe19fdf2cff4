"""Typed settings, presets, parsing of settings, and code of users that settings name."""
