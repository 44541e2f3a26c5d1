"""An HTTP/1.1 server with the interfaces of Tornado's, at a fraction of the cost."""
