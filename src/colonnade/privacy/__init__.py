"""What is kept secret, and how: draws that nobody can predict."""
