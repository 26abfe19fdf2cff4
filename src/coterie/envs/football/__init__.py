"""Google Research Football: its tasks, what players see, how they are paid, and pictures. Imports no engine."""
