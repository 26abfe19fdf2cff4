"""The environment interface and its checker."""
