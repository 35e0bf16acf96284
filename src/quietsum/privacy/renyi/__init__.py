"""Rényi accounting: curves of single steps, the accountant that adds them up, filters and odometers."""
