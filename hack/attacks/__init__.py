"""`make attacks`: an attacker as a process against a job of real workers that trains meanwhile."""
