"""Measures all weight-sync engines that can run on this machine, and draws their throughput."""
