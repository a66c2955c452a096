"""The exact method for stages of several devices."""
