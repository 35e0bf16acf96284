"""What a machine is good at: memory that is kept, half precision with a margin, the step as one graph."""
