"""Data: the contract of pixels and labels, the readers of data sets, the augmentation."""
