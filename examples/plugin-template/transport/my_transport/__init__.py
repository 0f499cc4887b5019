"""A weight-sync engine for Rollcall, from its template."""
