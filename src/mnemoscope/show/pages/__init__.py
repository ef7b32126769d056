"""The contents of pages: functions from an edition of an atlas to a `Page`, and their templates. No web server here."""
