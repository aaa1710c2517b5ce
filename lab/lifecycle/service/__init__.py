"""What only the service needs: pools, activity, tokens."""
