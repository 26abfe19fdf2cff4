"""Whether a user's own environment keeps to the interface that it has: Gymnasium's, or PettingZoo's."""
