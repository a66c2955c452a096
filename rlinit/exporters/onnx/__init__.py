"""Plans of ONNX models: a file for each stage."""
