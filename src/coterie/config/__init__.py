"""Configuration: parsing, layering, validation, presets, and the registry of algorithms and environments."""
