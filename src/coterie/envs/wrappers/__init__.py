"""What stands between an outside library's copy and the rest: other observations, actions and rewards, by keys."""
