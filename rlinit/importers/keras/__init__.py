"""Reading Keras models."""
