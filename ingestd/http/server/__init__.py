"""An HTTP/1.1 server that costs a fraction of Tornado's, and gives handlers the interfaces of Tornado's."""
