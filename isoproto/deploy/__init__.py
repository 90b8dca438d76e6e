"""A federation of real machines: keys, enrolment, nodes, health and status."""
