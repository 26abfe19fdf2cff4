"""The operations behind the command line and the Python API."""
