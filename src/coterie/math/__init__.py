"""The mathematics: tensors in, tensors out, no configuration, no state."""
