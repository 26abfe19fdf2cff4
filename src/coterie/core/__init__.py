"""Specs, data types, seeds, errors, metric declarations and files: the base of all other packages."""
