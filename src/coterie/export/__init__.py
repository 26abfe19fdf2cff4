"""Export of trained teams to files that other programs read."""
