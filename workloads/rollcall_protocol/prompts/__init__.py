"""The ledger of prompts: leases, partial responses, finished samples, checkpoints of these."""
