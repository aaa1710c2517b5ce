"""What happens inside a guest: the seed it boots with and how a clone is personalised."""
