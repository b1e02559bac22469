"""Options, output, prompts and exit codes, shared by all commands."""
