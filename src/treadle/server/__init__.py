"""The HTTP server: sessions over REST, SSE, WebSocket and JSON-RPC. It is given a Runtime and does not build one."""
