"""The HTTP server of the API and the dashboard."""
