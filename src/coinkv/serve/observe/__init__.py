"""What an operator sees: metrics, logs, traces."""
