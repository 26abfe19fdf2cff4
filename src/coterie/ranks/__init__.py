"""Learners in several processes, which average gradients and statistics."""
