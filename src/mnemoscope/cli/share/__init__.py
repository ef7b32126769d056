"""The verbs that give an atlas to others."""
