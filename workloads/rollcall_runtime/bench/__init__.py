"""Measuring weight sync: members in processes of their own, and what to do with them."""
