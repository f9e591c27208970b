"""What several drafters are built of: fresh guesses, the Jacobi update, n-gram lookup, branches. No torch."""
