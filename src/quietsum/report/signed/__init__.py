"""What makes a report a file that can be checked: its form, its signature, the pack around it, and the check."""
