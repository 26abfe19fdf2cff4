"""Wrappers of environment instances: observations, actions, rewards (`env.wrappers.*`)."""
