"""Engines: ways to the sum of clipped per-example gradients."""
