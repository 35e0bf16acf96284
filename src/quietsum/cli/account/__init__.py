"""Commands that price events: spend, calibrate, curve, explain."""
