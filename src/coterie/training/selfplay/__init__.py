"""Self-play: opponents sampled from a policy's past, one per environment within a batch, and Elo ratings."""
