"""A job on one machine: the operator as in a cluster, beside what stands in for Kubernetes."""
