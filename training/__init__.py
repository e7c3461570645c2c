"""The training pipeline: a CNN teacher, a DeiT student distilled from it, evaluation and export."""
