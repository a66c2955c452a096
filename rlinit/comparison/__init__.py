"""What a schedule is compared with: the splits that people make without a solver."""
