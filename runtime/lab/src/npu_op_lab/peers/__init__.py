"""Other projects' implementations of the same operators, made callable here for comparison."""
