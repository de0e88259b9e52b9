"""The HTTP side: API, artifacts, status."""
