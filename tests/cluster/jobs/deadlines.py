"""How long tests wait on a machine that other tests fill: twice what a slow host was seen to take.

None of these is a promise; a test of a promise has its own number of seconds.
"""

REACTION = 120  # an object or a pod is gone, replaced or reported
STARTED = 360  # new workers run, and take part in steps
LEARNED = 700  # a job has learned, or made its last step
WHOLE_TEST = 1200
