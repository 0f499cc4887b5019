"""What training engines share: batches, heads, optimizer and learning rate, weights out."""
