"""The running daemon: wiring, reload, sockets, systemd and shutdown."""
