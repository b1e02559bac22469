"""One check per file, named as `doctor` prints it."""
