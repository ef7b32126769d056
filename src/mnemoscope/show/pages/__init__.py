"""What each page says and shows: a function from an edition of an atlas to a `Page`, and its template; no web here."""
