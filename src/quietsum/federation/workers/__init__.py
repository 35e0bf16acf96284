"""Worker processes: a crew that shares out a cohort, and keepers of secrets in secure rounds."""
