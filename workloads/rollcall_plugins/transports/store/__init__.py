"""Engine `store`: versions in a directory or an object store."""
