"""Readers of the data sets' files, with numpy alone: ``quietsum datasets`` verifies files without torch."""
