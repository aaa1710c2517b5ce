"""What is more than a request and its answer: streams of events, WebSockets, silent connections."""
