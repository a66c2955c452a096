"""Branch, bound and remember: states of what is placed and which devices are used, from both ends, until they meet."""
