"""Trainers with one mistake each, and the correct trainer that they vary: the self-check must catch every mutant."""
