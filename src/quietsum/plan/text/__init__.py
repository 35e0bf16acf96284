"""Plans as text: run.toml in and out, its schema, reference and template, and errors that name the key."""
