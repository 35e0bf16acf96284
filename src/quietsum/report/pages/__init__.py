"""How a report reads: as a page, and in the words of those who ask for the same facts in a form of their own."""
