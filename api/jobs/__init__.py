"""Jobs: submitted, admitted, run."""
