"""Environments of outside libraries, one copy at a time, as one batch: stepped here or by workers."""
