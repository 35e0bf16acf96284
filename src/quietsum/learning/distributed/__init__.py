"""One training in several processes, as ``torchrun`` starts them: one draw, one noise, one charge."""
