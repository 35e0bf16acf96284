"""Noise on the integers with exactly its law: from tables, digit by digit, by rejection, and rounded normals."""
