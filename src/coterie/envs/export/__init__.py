"""Environments of Coterie behind the interfaces of other libraries."""
