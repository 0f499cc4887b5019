"""What every worker process needs: environment, settings, tokens, logs, metrics and exit codes."""
