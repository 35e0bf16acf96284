"""Privacy-loss distributions on a grid, with bounds from both sides."""
