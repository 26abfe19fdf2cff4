"""Imitation learning: file format, recording and checks of demonstrations, and behavior cloning."""
