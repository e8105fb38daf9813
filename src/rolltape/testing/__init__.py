"""Shipped test kit: what users and Rolltape's own tests drive the rest with."""
