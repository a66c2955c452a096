"""Published rivals: Baechi, m-SCT, GETF."""
