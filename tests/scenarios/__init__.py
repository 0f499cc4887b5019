"""What users rely on, in jobs as a whole: the same tests on one machine and on a cluster."""
