"""Files of a run: folder, checkpoints, logs, plots and summaries."""
