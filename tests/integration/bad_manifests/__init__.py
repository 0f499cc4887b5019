"""Wrong manifests, as data."""
