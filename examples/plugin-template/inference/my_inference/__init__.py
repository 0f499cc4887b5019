"""An inference engine for Rollcall, from its template."""
