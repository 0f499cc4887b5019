"""Tests of what runs inside vLLM; `make test-vllm` runs them where vLLM is installed."""
