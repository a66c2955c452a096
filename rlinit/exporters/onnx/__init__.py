"""Plans as ONNX: annotations, and a file for each stage."""
