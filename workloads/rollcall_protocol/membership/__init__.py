"""The state machines of coordinator and member: sessions, weight versions, catch-up."""
