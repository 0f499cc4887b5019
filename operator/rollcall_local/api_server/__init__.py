"""The part of the Kubernetes API that a job needs, over objects in one folder."""
