"""The store and the journal that the configuration names."""
