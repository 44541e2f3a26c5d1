"""The protocols of systemd: notifications and passed sockets."""
