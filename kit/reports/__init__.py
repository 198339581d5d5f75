"""Reports: the data of finished and running runs, collected into one HTML page that needs no network."""
