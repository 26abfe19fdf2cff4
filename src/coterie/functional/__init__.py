"""Pure functions of tensors, without configuration or state."""
