"""The commands of sinks: `ingestd sinks status | replay | dead-letters … | pause | resume`."""
