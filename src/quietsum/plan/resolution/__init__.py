"""A plan met with its parties: noise, charges, forecast, the guarantee card."""
