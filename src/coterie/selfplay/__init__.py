"""Self-play: opponents from a policy's own past, drawn by copy within one batch, and how strong each one is."""
