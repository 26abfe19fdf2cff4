"""Reward signals: what a team is rewarded for beside what its environment pays, such as seeing what is new to it."""
