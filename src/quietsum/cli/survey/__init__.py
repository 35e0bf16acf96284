"""Commands that ask: surveys with local privacy, and questions to sites."""
