"""Tools of MCP servers, through the official SDK, which is imported when a server is first reached."""
