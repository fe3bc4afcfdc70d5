"""History: file contents from before each change, and rewinding a session to them."""
