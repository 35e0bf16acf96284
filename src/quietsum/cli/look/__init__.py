"""Commands that look: runs, show, compare, ledger, alerts, suspects."""
