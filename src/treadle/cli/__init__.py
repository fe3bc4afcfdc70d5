"""The command line: one file a command, over the library's public ways. It renders events and answers gates."""
