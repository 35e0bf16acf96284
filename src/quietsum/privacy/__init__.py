"""What an event costs: events, guarantees and accountants. Needs numpy and scipy only."""
