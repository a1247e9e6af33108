"""The rules of a pause: pure, and ignorant of any database, web or agent framework."""
