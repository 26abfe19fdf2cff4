"""Environments: the contract, its checker, and the worlds that come with Coterie."""
