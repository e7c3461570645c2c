"""Readers of data sets, one file each; `base.py` defines the interface and finds them."""
