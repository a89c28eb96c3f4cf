"""What a person and a program read of a migration."""
