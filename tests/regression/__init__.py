"""What was recorded once still holds."""
