"""bhyve guests through vm-bhyve."""
