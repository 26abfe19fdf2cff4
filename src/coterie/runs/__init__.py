"""Files of a run: folder, checkpoints, logs, plots and summaries. Called, it returns a table of runs."""
