"""Policies map observations to actions."""
