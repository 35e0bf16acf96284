"""What people look at of a run: its course, read from the files that it writes for them."""
