"""Events of labs and jobs."""
