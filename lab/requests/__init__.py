"""What is asked for: one frozen type for each verb, from the flag and the HTTP body to the verb.

A service keeps the requests of its jobs as JSON, and later versions read them: so every field that
is added has a default, and none changes its meaning; unknown fields are ignored, and a null means
the default. An older host of a fleet refuses a request that says more than it knows. The JSON also
identifies a repeated request: all fields are written, except what the request is about, which the
row has elsewhere. A field that is added to a type would change the digests of its requests:
``LATER`` names it, and it is left out while it is false, empty or null.
"""
