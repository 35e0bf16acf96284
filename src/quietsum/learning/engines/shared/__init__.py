"""What examples share (positions, tokens, scales) and what layers share (tied tables)."""
