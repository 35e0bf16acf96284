"""The tasks that come with quietsum, each beside the reader of its files."""
