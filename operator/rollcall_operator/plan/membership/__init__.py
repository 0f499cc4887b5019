"""Who is a member of the job, and which pods go: roster, gates, removals."""
