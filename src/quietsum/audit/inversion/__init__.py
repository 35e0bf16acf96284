"""Inversion: what of a record can be rebuilt from its gradient, and what of a class from the model."""
