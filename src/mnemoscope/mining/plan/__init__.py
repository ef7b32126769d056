"""What a run will do: options made into a plan."""
