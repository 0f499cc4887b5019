"""The only package that knows the Kubernetes client; above it are plain dictionaries."""
