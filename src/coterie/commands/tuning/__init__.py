"""Search for better settings with Optuna: `coterie tune`."""
