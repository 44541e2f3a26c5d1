"""The HTTP listeners: the public one for events, and the operators' one."""
