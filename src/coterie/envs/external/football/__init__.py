"""Google Research Football: tasks, observations, reward shaping and rendering. Does not import the engine."""
