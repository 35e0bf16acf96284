"""A run in an MLflow tracking store."""
