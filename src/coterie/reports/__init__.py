"""Comparison of runs: statistics over seeds and tasks, tables and figures."""
