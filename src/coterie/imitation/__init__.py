"""Learning from demonstrations: their file format, how they are recorded and checked, and policies fitted to them."""
