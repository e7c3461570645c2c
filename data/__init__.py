"""Data: the contract for crops and labels, readers of data sets, and augmentation."""
