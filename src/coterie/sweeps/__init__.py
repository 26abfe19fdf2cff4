"""Many runs: sweeps on this machine, Ray and Slurm, and searches for settings."""
