"""Labeling on a Ray cluster: the engine and its partitioned Parquet table."""
