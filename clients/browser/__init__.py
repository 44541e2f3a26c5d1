"""The browser client. The daemon serves `ingestd.js`; the other files are the package for npm."""
