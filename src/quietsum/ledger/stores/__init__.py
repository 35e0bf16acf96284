"""Where the rows of a ledger lie: SQLite, PostgreSQL or memory, and how a ledger moves between them."""
