"""The HTTP server, and the request bodies it shares with the command line. Only ``sysone serve`` needs its framework."""
