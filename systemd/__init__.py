"""The systemd units, for a virtual environment in /opt/ingestd. `ingestd install-units` installs them."""
