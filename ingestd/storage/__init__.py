"""The store and the journal of the configuration: opening, retention, a separate journal, loss of data."""
