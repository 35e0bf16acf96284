"""Commands for sites and their keys: party, keys, data."""
