"""The HTTP server that the API and the dashboard stand on."""
