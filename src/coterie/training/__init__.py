"""Collection, evaluation and the training loop."""
