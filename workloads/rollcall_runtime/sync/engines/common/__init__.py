"""What several weight-sync engines share: base classes, abandonable calls, child processes."""
