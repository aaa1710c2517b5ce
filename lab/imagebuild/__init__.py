"""Builds guest images from recipes (``images/``)."""
