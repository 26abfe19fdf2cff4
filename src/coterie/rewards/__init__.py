"""Reward signals in addition to the environment's rewards, such as curiosity, novelty and imitation."""
