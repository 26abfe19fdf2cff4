"""Lessons: parameters of the environment that change as a run comes further, and are drawn for every episode."""
