"""Redis Cluster as a back end: each partition is what a single Redis is, in one slot of the cluster."""
