"""The documentation as a site (`make docs`), and the check of its links in `make lint`."""
