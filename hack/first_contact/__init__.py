"""What a machine with its first accelerator is asked, in the order that tells most first."""
