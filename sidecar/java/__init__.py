"""Java programs that the sidecar starts: which Java, which jars, the Spark job."""
