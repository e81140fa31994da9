"""What the chapters ask and say; a chapter names its parts by id."""
