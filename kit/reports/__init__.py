"""Reports: what runs came to, gathered, and as one page that needs no network."""
