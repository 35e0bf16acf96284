"""Private steps taken apart for the self-check, and what is checked before a training."""
