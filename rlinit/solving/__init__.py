"""From the public call to phases: what runs when, on which share of the budget."""
