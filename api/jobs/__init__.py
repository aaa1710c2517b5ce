"""Jobs: submitted, admitted, done."""
