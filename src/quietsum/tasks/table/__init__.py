"""A task from a table: what the options say, how a row becomes numbers, which model learns from them."""
