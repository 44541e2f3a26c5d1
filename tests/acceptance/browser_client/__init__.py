"""The browser client in Chromium and Firefox against a daemon."""
