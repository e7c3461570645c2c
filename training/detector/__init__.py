"""Training of the face detector by distillation: YuNet labels pictures, a network of the project's own learns them."""
