"""Who has the event loop now, and who waits: room, demand, and the tasks of requests."""
