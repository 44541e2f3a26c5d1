"""Attribution: finds the campaign that brought an order. docs/attribution.md has the rules."""
