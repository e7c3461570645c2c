"""One file per data set; `base.py` says what a reader is and finds them."""
