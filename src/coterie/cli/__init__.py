"""Command line of Coterie."""
