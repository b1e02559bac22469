"""Search, redrive, export, import and delete dead letters."""
