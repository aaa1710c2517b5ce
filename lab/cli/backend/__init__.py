"""Where commands run: on this host, or on a service."""
