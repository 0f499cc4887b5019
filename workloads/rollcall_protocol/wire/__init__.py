"""What crosses a wire: identities, rosters, messages, weight manifests, and their JSON form."""
