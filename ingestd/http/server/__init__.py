"""An HTTP/1.1 server for the events' endpoints. It costs a fraction of Tornado's."""
