"""Curricula: environment parameters that change as a run progresses and are sampled for every episode."""
