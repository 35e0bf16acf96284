"""The rules, one idea a file; :mod:`quietsum.aggregation.robust.registry` knows them by name."""
