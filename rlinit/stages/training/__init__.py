"""Training pipelines: forward and backward of an op on one stage, with the memory that training takes."""
