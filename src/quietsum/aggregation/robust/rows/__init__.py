"""Arithmetic on the rows of a matrix: passes over its blocks, distances between rows, and clusters of a few numbers."""
