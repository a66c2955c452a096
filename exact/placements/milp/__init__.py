"""The mixed-integer program of DIVIML and Moirai."""
