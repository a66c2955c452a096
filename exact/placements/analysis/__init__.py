"""What a placement problem decides before any search: time windows, reachability, devices that are alike."""
