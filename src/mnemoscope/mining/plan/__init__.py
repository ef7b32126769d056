"""What a run will do: options made into a plan, and what later rules changed."""
