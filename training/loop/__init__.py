"""The training loop: batches, optimizer, checkpoints, several processes, metrics and throughput."""
