"""Other people's claims: their settings become privacy events, and the events are priced beside what is claimed."""
