"""The stage problem: assignments of ops to the stages of a pipeline, their costs, slices and windows."""
