"""A party's local training as one update: a single client, many side by side, and training without privacy."""
