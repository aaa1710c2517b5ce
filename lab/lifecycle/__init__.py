"""One verb a file: what happens to labs, templates and images, in order."""
