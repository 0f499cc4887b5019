"""What the engines share whose receivers read from registered memory (mooncake, nixl, kimi)."""
