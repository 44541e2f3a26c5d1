"""The units of systemd, for a virtual environment under /opt/ingestd; `ingestd install-units` puts them in place."""
