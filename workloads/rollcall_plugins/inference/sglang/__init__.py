"""The inference engine `sglang`: an unmodified SGLang beside the agent, in processes of its own."""
