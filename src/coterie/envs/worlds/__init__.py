"""Built-in environments, batched in PyTorch."""
