"""ONNX Runtime: sessions with verified providers, CUDA batches and CPU counts."""
