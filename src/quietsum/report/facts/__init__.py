"""What a report states: what is protected and at what price, the curve behind it, utility, files and dates."""
