"""The HTTP server, and the request bodies it shares with the command line. ``sysone serve`` alone needs Litestar."""
