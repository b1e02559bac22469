"""What seconds of lost packets do to transactions: committers alone, and a real sidecar."""
