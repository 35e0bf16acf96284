"""What the commands share: options, output, logs, signals, and safe printing."""
