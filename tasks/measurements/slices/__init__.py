"""The slices of the recipe on the page; the gate itself judges them."""
