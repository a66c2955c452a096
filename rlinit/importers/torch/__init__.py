"""Reading models and programs of torch."""
