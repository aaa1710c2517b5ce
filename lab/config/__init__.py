"""Everything that users write down."""
