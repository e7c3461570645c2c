"""Distillation: the losses of DeiT and the teachers they need."""
