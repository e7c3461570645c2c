"""ONNX Runtime: sessions with verified providers, CUDA batches, CPU counts and the Triton repository."""
