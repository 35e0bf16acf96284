"""The pages, a module for each of their subjects."""
