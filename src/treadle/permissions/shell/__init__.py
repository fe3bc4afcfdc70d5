"""Shell commands: what a command would run, and how dangerous that is. Pure."""
