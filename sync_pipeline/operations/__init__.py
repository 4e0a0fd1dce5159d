"""What a person or a machine does with the installation: its environment, registration, status, health."""
