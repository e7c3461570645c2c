"""What a pixel and a label mean: the contract, the readers of data sets, the augmentation."""
