"""How data get into an image: spooled on the host, loaded by a server in a guest."""
