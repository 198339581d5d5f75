"""Files and text that other programs, users and hosts may have written: read within bounds, written whole or not at all."""
