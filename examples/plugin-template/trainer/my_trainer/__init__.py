"""A training engine for Rollcall, from its template."""
