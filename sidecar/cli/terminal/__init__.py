"""Options, output, prompts, exit codes: what all commands share."""
