"""The inference engine `vllm`: an unmodified vLLM beside the agent, in processes of its own."""
