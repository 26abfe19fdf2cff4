"""Search for better settings with Optuna: `coterie tune`. Importing its modules requires Optuna."""
