"""How nodes become a cluster: one topology a file."""
