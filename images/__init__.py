"""Recipes (data) and the builder that makes guest images of them."""
