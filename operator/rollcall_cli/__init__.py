"""What people ask of a running job: `rollcall`, which kubectl knows as `kubectl rollcall`."""
