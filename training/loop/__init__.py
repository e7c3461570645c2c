"""Training loop: batches, optimizer, checkpoints, multiple processes, metrics and throughput."""
