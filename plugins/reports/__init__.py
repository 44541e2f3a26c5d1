"""Reports for marketers: orders, revenue and sessions by channel, campaign, page or product. docs/reports.md."""
