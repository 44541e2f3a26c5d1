"""The annotated configuration, and what Prometheus and Grafana need to watch ingestd."""
