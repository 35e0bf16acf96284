"""The exact accountant: two-sided bounds on ε by a contour integral, and the closed forms it rests on."""
