"""Reading ONNX models."""
