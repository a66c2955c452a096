"""Reading TensorFlow Lite models."""
