"""What a host has and needs: checks, storage, images, engines, leftovers."""
