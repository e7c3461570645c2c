"""Training of the face detector by distillation: a small network learns the labels of YuNet."""
