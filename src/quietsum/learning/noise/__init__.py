"""Noise: what is added to a sum of clipped gradients, and the keystream it is drawn from on a graphics card."""
