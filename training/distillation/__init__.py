"""Distillation: losses as in DeiT, and teachers."""
