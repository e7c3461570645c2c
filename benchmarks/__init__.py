"""Benchmarks behind the published numbers on speed, memory and size; imported by nothing else."""
