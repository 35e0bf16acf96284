"""The tasks that come with quietsum, one data set a file; ``files`` holds the readers of their files."""
