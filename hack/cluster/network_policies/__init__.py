"""NetworkPolicies on the local cluster: rules of the kernel's firewall, kept by a pod on each node.

Standard library only: the pods run these files as they are.
"""
