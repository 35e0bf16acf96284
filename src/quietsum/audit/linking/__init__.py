"""Linking: a missing value filled in, and a recording traced to a person, by what a model answers."""
