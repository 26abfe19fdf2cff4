"""Environments of other libraries, one instance each, as a vectorized environment: stepped here or by workers."""
