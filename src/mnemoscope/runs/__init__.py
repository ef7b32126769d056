"""A run: one folder and one plan, its stages, its workers, and the launchers that start them; knows no table."""
