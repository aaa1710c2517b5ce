"""Images: built once, published whole, chosen by engine."""
