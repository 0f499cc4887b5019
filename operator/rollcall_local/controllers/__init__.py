"""What the controller manager does in a cluster, as pure functions: objects in, changes out."""
