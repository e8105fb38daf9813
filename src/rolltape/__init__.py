"""Rolltape: train on the agent you ship."""
