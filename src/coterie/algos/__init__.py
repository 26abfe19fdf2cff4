"""Algorithms: one readable file a family. They see windows of their own team, never environments, logs or files."""
