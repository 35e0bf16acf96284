"""The chain of a ledger: how entries are written, hashed, signed, verified, exported and kept in snapshots."""
