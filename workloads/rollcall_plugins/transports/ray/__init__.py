"""Engine `ray`: Ray's collectives, the baseline."""
