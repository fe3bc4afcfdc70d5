"""Shell commands: what a command would run, and how dangerous it is. Pure."""
